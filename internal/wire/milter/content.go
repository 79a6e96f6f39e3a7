package milter

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"zmailer/internal/mail/envelope"
)

// maxField is how much of a field's value a filter sees: libmilter takes no packet above
// 64 kB. Bytes.
const maxField = 60000

// Kind is what a change concerns.
type Kind uint8

const (
	AddField        Kind = iota // Name: Value behind the last field
	InsertField                 // the same at position Index, as Sendmail counts: 0 is before our Received field, 1 the first field of the message
	ChangeField                 // the field number Index, from 1, of those called Name; Value "": it is removed
	AddRecipient                // Address, with Params
	DeleteRecipient             // Address
	ChangeSender                // Address, with Params
	Quarantine                  // Value: why
)

// Change is one that a filter asks for.
type Change struct {
	Kind    Kind
	Index   int
	Name    string
	Value   string // with the blank before it; lines inside it end in LF
	Address string // as the filter has written it, mostly in brackets
	Params  string // ESMTP parameters; "": none
}

// Content shows the filter a message: fields as written in the message file, body with
// LF line ends. A new body goes to newBody as it comes. The message is over for the
// filter then, whatever it answers.
func (s *Session) Content(fields []envelope.Field, body io.Reader, newBody io.Writer, m Macros) (Answer, []Change, error) {
	now := s.cfg.Now()
	s.limit, s.last = now.Add(s.cfg.ContentTimeout), now.Add(maxProgress*s.cfg.ContentTimeout)
	defer func() { s.limit = time.Time{} }()
	a, err := s.show(fields, body, m)
	if err != nil {
		return Answer{}, nil, err
	}
	if a.Action != Continue {
		s.began = false
		return a, nil, nil
	}
	s.began = false
	s.macros(cmdEnd, m)
	s.packet(cmdEnd)
	a, changes, err := s.changes(newBody)
	if err != nil {
		return Answer{}, nil, s.trouble(err)
	}
	return a, changes, nil
}

// show sends header and body until the filter has seen enough.
func (s *Session) show(fields []envelope.Field, body io.Reader, m Macros) (Answer, error) {
	for _, f := range fields {
		if f.Name == "" {
			continue
		}
		a, err := s.do(atField, nil, func(w *wire) {
			w.text(f.Name)
			w.text(s.value(f))
		})
		if err != nil || a.Action != Continue {
			return a, err
		}
	}
	if a, err := s.do(atEndOfHeader, m, func(*wire) {}); err != nil || a.Action != Continue {
		return a, err
	}
	if s.steps&noBody != 0 {
		return Answer{}, nil
	}
	return s.showBody(body)
}

// maxChunk is how much of a body libmilter takes in one packet.
const maxChunk = 65535

// chunk is how much of the body is read at once: with each LF made CRLF it fits a packet.
const chunk = maxChunk / 2

var chunks = sync.Pool{New: func() any { return new([chunk]byte) }}

func (s *Session) showBody(body io.Reader) (Answer, error) {
	in := chunks.Get().(*[chunk]byte)
	defer chunks.Put(in)
	for {
		n, rerr := io.ReadFull(body, in[:])
		if n > 0 {
			a, err := s.do(atBody, nil, func(w *wire) { w.out = appendCRLF(w.out, in[:n]) })
			switch {
			case err != nil:
				return a, err
			case a.Action == skip:
				return Answer{}, nil
			case a.Action != Continue:
				return a, nil
			}
		}
		switch {
		case errors.Is(rerr, io.EOF), errors.Is(rerr, io.ErrUnexpectedEOF):
			return Answer{}, nil
		case rerr != nil:
			return Answer{}, &BodyError{rerr}
		}
	}
}

// appendCRLF appends text with each LF made CRLF.
func appendCRLF(out, text []byte) []byte {
	for {
		i := bytes.IndexByte(text, '\n')
		if i < 0 {
			return append(out, text...)
		}
		out = append(append(out, text[:i]...), "\r\n"...)
		text = text[i+1:]
	}
}

// BodyError is one of the reader that gives the body: it is not the filter's trouble.
type BodyError struct{ Err error }

func (e *BodyError) Error() string { return fmt.Sprintf("show a filter the message: %v", e.Err) }
func (e *BodyError) Unwrap() error { return e.Err }

// value returns a field's body as the filter wants it: without its line end, and without the
// first blank if it has not asked for that.
func (s *Session) value(f envelope.Field) string {
	v := f.Raw[bytes.IndexByte(f.Raw, ':')+1:]
	v = bytes.TrimSuffix(bytes.TrimSuffix(v, []byte{'\n'}), []byte{'\r'})
	if !s.spaces() {
		v = bytes.TrimPrefix(v, []byte{' '})
	}
	if len(v) > maxField {
		v = v[:maxField]
	}
	return string(v)
}

// spaces reports whether values are sent with the blank that they begin with.
func (s *Session) spaces() bool { return s.steps&leadingSpace != 0 }

// changes reads the answer to the end of a message, with the changes before it.
func (s *Session) changes(newBody io.Writer) (Answer, []Change, error) {
	if err := s.wire.flush(s.deadline()); err != nil {
		return Answer{}, nil, err
	}
	var list []Change
	kept := 0
	for {
		code, n, err := s.wire.next(s.deadline())
		if err != nil {
			return Answer{}, nil, err
		}
		if code == ansBody {
			if err := s.wire.copyTo(newBody, n); err != nil {
				return Answer{}, nil, err
			}
			continue
		}
		data, err := s.wire.read(n)
		if err != nil {
			return Answer{}, nil, err
		}
		if code == ansProgress {
			s.progress()
			continue
		}
		a, ok, err := answer(code, data)
		switch {
		case err != nil:
			return Answer{}, nil, err
		case ok && a.Action == skip:
			return Answer{}, nil, fmt.Errorf("%w: skip in answer to the end of a message", errProtocol)
		case ok:
			return a, list, nil
		}
		if kept += n + overhead; kept > maxChanges {
			return Answer{}, nil, ErrTooMuch
		}
		c, ok := s.change(code, data)
		if !ok {
			return Answer{}, nil, fmt.Errorf("%w: packet %q with %.40q in answer to the end of a message", errProtocol, code, data)
		}
		list = append(list, c)
	}
}

// change reads one change.
func (s *Session) change(code byte, data []byte) (Change, bool) {
	c := Change{}
	switch code {
	case ansAddField, ansInsertField, ansChangeField:
		if code != ansAddField {
			if len(data) < 4 {
				return c, false
			}
			c.Index = int(int32(binary.BigEndian.Uint32(data)))
			data = data[4:]
		}
		c.Kind = map[byte]Kind{ansAddField: AddField, ansInsertField: InsertField, ansChangeField: ChangeField}[code]
		var two bool
		c.Name, c.Value, two = strings2(data)
		// Without a value a change is a removal.
		if (c.Value != "" || c.Kind != ChangeField) && !s.spaces() {
			c.Value = " " + c.Value
		}
		return c, two
	case ansAddRcpt, ansAddRcptParam:
		c.Kind = AddRecipient
		c.Address, c.Params, _ = strings2(data)
	case ansDeleteRcpt:
		c.Kind = DeleteRecipient
		c.Address, _, _ = strings2(data)
	case ansChangeFrom:
		c.Kind = ChangeSender
		c.Address, c.Params, _ = strings2(data)
	case ansQuarantine:
		c.Kind = Quarantine
		c.Value, _, _ = strings2(data)
	default:
		return c, false
	}
	return c, true
}

// strings2 reads one or two strings that end in NUL; the second may be missing.
func strings2(data []byte) (first, second string, two bool) {
	a, rest, two := bytes.Cut(data, []byte{0})
	b, _, _ := bytes.Cut(rest, []byte{0})
	return string(a), string(bytes.ReplaceAll(b, []byte("\r\n"), []byte("\n"))), two && len(rest) > 0
}
