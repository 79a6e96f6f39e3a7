package view

import (
	"bytes"
	"errors"
	"io"
	"os"
	"strings"
	"time"

	"zmailer/internal/mail/envelope"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/human"
)

// Details is everything about a message.
type Details struct {
	*Message
	Details       []FileDetails `json:"file_details"`
	Reasons       []Step        `json:"reasons,omitempty"`       // why it was put aside, each time
	Envelope      []string      `json:"envelope,omitempty"`      // lines as they are written
	Specification []string      `json:"specification,omitempty"` // the same
	History       []Step        `json:"history,omitempty"`
	Next          []string      `json:"next"`               // in words
	Troubles      []string      `json:"troubles,omitempty"` // what could not be read
}

// FileDetails is one of a message's files.
type FileDetails struct {
	File    string    `json:"file"`
	Gone    bool      `json:"gone,omitempty"` // meanwhile
	Size    int64     `json:"size"`
	Mode    string    `json:"mode"`
	UID     uint32    `json:"uid"`
	Written time.Time `json:"written"`
}

// Everything gathers all that is known of a message.
func (x *Explainer) Everything(m *Message) *Details {
	past := Histories{x.Spool}
	e := &Details{Message: m, Specification: TextLines(m.Raw), Next: x.Next(m)}
	for _, name := range m.Files {
		info, err := x.Spool.FS.Stat(name)
		e.Details = append(e.Details, FileDetails{File: name, Gone: err != nil, Size: info.Size, Mode: info.Mode.String(), UID: info.UID, Written: info.ModTime})
	}
	if m.File.Dir != "" {
		var err error
		if e.Envelope, err = x.Spool.EnvelopeLines(m); err != nil {
			e.Troubles = append(e.Troubles, human.Clean(err.Error()))
		}
		e.Reasons = past.putAside(m)
		for i := range e.Reasons {
			e.Reasons[i].ID = m.ID
		}
	}
	list, err := past.Of(m.SpoolID)
	if err != nil {
		e.Troubles = append(e.Troubles, human.Clean(err.Error()))
	}
	e.History = list
	return e
}

// ReasonWords describes an entry of the file of reasons.
func ReasonWords(r *postoffice.Reason) string {
	text := human.Clean(r.What) + " by " + human.Clean(r.Who)
	if r.Text != "" {
		text += ": " + human.Clean(r.Text)
	}
	return text
}

// maxShown is how many bytes of a message file are read to show its envelope.
const maxShown = 1 << 20

// EnvelopeLines returns the envelope lines as written in the file, also of one that cannot
// be used.
func (s *Files) EnvelopeLines(m *Message) ([]string, error) {
	h, err := s.FS.Open(m.File.Path(), os.O_RDONLY, 0)
	if err != nil {
		return nil, err
	}
	defer h.Close()
	head, err := envelope.Read(h)
	end := int64(maxShown)
	if err != nil {
		err = errors.New("BROKEN: " + err.Error())
	} else {
		end = head.HeaderOffset
	}
	b := make([]byte, min(end, maxShown))
	n, rerr := h.ReadAt(b, 0)
	if rerr != nil && !errors.Is(rerr, io.EOF) {
		return nil, errors.Join(err, rerr)
	}
	return TextLines(b[:n]), err
}

// TextLines returns the lines of a file, fit for a terminal.
func TextLines(b []byte) []string {
	var list []string
	for line := range bytes.Lines(b) {
		list = append(list, human.Clean(strings.TrimSuffix(string(line), "\n")))
	}
	return list
}
