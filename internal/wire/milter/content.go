package milter

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/emersion/go-milter"

	"zmailer/internal/mail/envelope"
)

// maxField is how much of a field's value a filter sees: libmilter takes no packet above
// 64 kB. Bytes.
const maxField = 60000

// Kind is what a change concerns.
type Kind uint8

const (
	AddField        Kind = iota // Name: Value behind the last field
	InsertField                 // the same before the field number Index, from 0
	ChangeField                 // the field number Index, from 1, of those called Name; Value "": it is removed
	AddRecipient                // Address
	DeleteRecipient             // Address
	ChangeSender                // Address
	Quarantine                  // Value: why
)

// Change is one that a filter asks for.
type Change struct {
	Kind    Kind
	Index   int
	Name    string
	Value   string // with the blank before it; lines inside it end in LF
	Address string // as the filter has written it, mostly in brackets
}

// Content shows the filter a message: fields as written in the message file, body with
// LF line ends. A new body goes to newBody as it comes. The message is over for the
// filter then, whatever it answers.
func (s *Session) Content(fields []envelope.Field, body io.Reader, newBody io.Writer, m Macros) (Answer, []Change, error) {
	s.frames.limitTo(s.cfg.Now().Add(s.cfg.ContentTimeout))
	s.frames.await(newBody)
	defer func() {
		s.frames.limitTo(time.Time{})
		s.frames.await(nil)
	}()
	a, err := s.show(fields, body)
	if err != nil {
		return Answer{}, nil, err
	}
	if a.Action != Continue {
		s.began = false
		return a, nil, nil
	}
	if err := s.macros(milter.CodeEOB, m); err != nil {
		return Answer{}, nil, err
	}
	s.began = false
	wanted, end, err := s.client.End()
	if err != nil {
		return Answer{}, nil, s.trouble("", err)
	}
	if a, err = s.answer(end); err != nil {
		return Answer{}, nil, err
	}
	changes := make([]Change, 0, len(wanted))
	for _, w := range wanted {
		changes = append(changes, s.change(w))
	}
	return a, changes, nil
}

// show sends header and body until the filter has seen enough.
func (s *Session) show(fields []envelope.Field, body io.Reader) (Answer, error) {
	if s.client.ProtocolOption(milter.OptNoHeaders) {
		fields = nil
	}
	for _, f := range fields {
		if f.Name == "" {
			continue
		}
		a, err := s.ask(s.client.HeaderField(clean(f.Name), s.value(f)))
		if err != nil || a.Action != Continue {
			return a, err
		}
	}
	if a, err := s.ask(s.client.HeaderEnd()); err != nil || a.Action != Continue {
		return a, err
	}
	if s.client.ProtocolOption(milter.OptNoBody) {
		return Answer{}, nil
	}
	return s.showBody(body)
}

// chunk is how much of the body is read at once: with each LF made CRLF it fits a packet.
const chunk = milter.MaxBodyChunk / 2

// chunks are read into one third and sent from the others.
var chunks = sync.Pool{New: func() any { return new([3 * chunk]byte) }}

func (s *Session) showBody(body io.Reader) (Answer, error) {
	b := chunks.Get().(*[3 * chunk]byte)
	defer chunks.Put(b)
	in, out := b[:chunk], b[chunk:]
	for {
		n, rerr := io.ReadFull(body, in)
		out = out[:0]
		for rest := in[:n]; len(rest) > 0; {
			i := bytes.IndexByte(rest, '\n')
			if i < 0 {
				out = append(out, rest...)
				break
			}
			out = append(append(out, rest[:i]...), "\r\n"...)
			rest = rest[i+1:]
		}
		if len(out) > 0 {
			if a, err := s.ask(s.client.BodyChunk(out)); err != nil || a.Action != Continue {
				return a, err
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

// BodyError is one of the reader that gives the body: it is not the filter's trouble.
type BodyError struct{ Err error }

func (e *BodyError) Error() string { return fmt.Sprintf("show a filter the message: %v", e.Err) }
func (e *BodyError) Unwrap() error { return e.Err }

func (s *Session) ask(a *milter.Action, err error) (Answer, error) {
	if err != nil {
		return Answer{}, s.trouble("", err)
	}
	return s.answer(a)
}

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
	return clean(string(v))
}

// spaces reports whether values are sent with the blank that they begin with.
func (s *Session) spaces() bool { return s.client.ProtocolOption(milter.OptHeaderLeadingSpace) }

// change reads one of the library's.
func (s *Session) change(w milter.ModifyAction) Change {
	value := w.HeaderValue
	if value != "" && !s.spaces() {
		value = " " + value
	}
	c := Change{Index: int(w.HeaderIndex), Name: w.HeaderName, Value: value}
	switch w.Code {
	case milter.ActAddHeader:
		c.Kind = AddField
	case milter.ActInsertHeader:
		c.Kind = InsertField
	case milter.ActChangeHeader:
		c.Kind = ChangeField
	case milter.ActAddRcpt:
		c = Change{Kind: AddRecipient, Address: w.Rcpt}
	case milter.ActDelRcpt:
		c = Change{Kind: DeleteRecipient, Address: w.Rcpt}
	case milter.ActChangeFrom:
		c = Change{Kind: ChangeSender, Address: w.From}
	case milter.ActQuarantine:
		c = Change{Kind: Quarantine, Value: w.Reason}
	}
	return c
}
