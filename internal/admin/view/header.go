package view

import (
	"bufio"
	"bytes"
	"mime"
	"net/textproto"

	"zmailer/internal/mail/envelope"
	"zmailer/internal/run/human"
)

// shownFields returns what a page shows of a header.
func shownFields() []string {
	return []string{"From", "Sender", "To", "Cc", "Subject", "Date", "Message-Id", "List-Id", "Auto-Submitted"}
}

// Header reads what a page shows of a message's header. What cannot be read is left out:
// the Problem of the message has the error.
func (s *Files) Header(m *Message) []HeaderField {
	if m.File.Dir == "" {
		return nil
	}
	f, err := s.Open(m.File)
	if err != nil {
		return nil
	}
	defer f.Close()
	head, err := envelope.Read(f)
	if err != nil {
		return nil
	}
	// Of one that breaks off, what came before is given beside the error.
	fields, _ := textproto.NewReader(bufio.NewReader(bytes.NewReader(head.Header))).ReadMIMEHeader()
	words := &mime.WordDecoder{}
	var list []HeaderField
	for _, name := range shownFields() {
		for i, value := range fields[textproto.CanonicalMIMEHeaderKey(name)] {
			if i == 3 {
				break
			}
			if text, err := words.DecodeHeader(value); err == nil {
				value = text
			}
			list = append(list, HeaderField{Name: name, Value: human.Cut(human.Clean(value), 1000)})
		}
	}
	return list
}

// HeaderField is a field of a message's header, decoded and safe to display.
type HeaderField struct{ Name, Value string }
