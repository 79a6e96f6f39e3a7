package envelope

import (
	"errors"
	"fmt"
	"strings"
)

// Append appends the envelope's lines, env-end included, in ZMailer's order.
// Octets and Unknown are not written. It fails if a value holds a line end, a NUL or
// another control character, or an address is none: no one can smuggle an envelope
// line in. It fails with ErrTooLarge if Read would refuse the envelope. On an error b's bytes are as they were.
func Append(b []byte, e *Envelope) ([]byte, error) {
	lines, err := AppendOpen(b, e)
	if err == nil && len(lines)-len(b) > maxWritten {
		err = fmt.Errorf("write envelope: %d recipients: %w", len(e.Recipients), ErrTooLarge)
	}
	if err != nil {
		return b, err
	}
	return append(lines, End...), nil
}

// End is the last line of an envelope.
const End = "env-end\n"

// AppendOpen appends the lines without End, for an envelope with more recipients than the
// caller keeps: AppendRecipients makes their lines, and End ends it. The caller has to keep
// the lines of all recipients within MaxRecipients. Its errors are those of Append.
func AppendOpen(b []byte, e *Envelope) ([]byte, error) {
	w := writer{b: b}
	for _, p := range places {
		switch {
		case p.flag != nil:
			w.flag(p.keyword, *p.flag(e))
			continue
		case p.keyword == "envid": // the sender is written before it
			w.sender(e)
		}
		w.value(p.keyword, *p.value(e))
		if p.keyword == "rcvdfrom" {
			for _, c := range e.Comments {
				w.value("comment", c)
			}
		}
	}
	w.recipients(e.Recipients)
	return w.end(b)
}

// AppendRecipients appends the lines of recipients, see AppendOpen.
func AppendRecipients(b []byte, list []Recipient) ([]byte, error) {
	w := writer{b: b}
	w.recipients(list)
	return w.end(b)
}

// end returns the lines or, with an error, what was there before them.
func (w *writer) end(before []byte) ([]byte, error) {
	if w.err != nil {
		return before, w.err
	}
	return w.b, nil
}

func (w *writer) recipients(list []Recipient) {
	for i := range list {
		r := &list[i]
		w.value("todsn", r.DSN)
		if r.Address == "" {
			w.fail("to", "", errors.New("the null address is no recipient"))
		}
		w.address("to", r.Address)
	}
}

// writer appends lines; its first error sticks.
type writer struct {
	b   []byte
	err error
}

func (w *writer) fail(keyword, value string, err error) {
	if w.err == nil {
		w.err = fmt.Errorf("write envelope: %s %.100q: %w", keyword, value, err)
	}
}

func (w *writer) flag(keyword string, on bool) {
	if on {
		w.b = append(append(w.b, keyword...), '\n')
	}
}

func (w *writer) sender(e *Envelope) {
	switch {
	case e.From != "":
		w.address("from", e.From)
	case e.HasFrom:
		w.value("channel", "error")
	}
}

func (w *writer) value(keyword, value string) {
	if value == "" {
		return
	}
	for i := 0; i < len(value); i++ {
		if value[i] < ' ' && value[i] != '\t' || value[i] == 0x7f {
			w.fail(keyword, value, errors.New("control character"))
			return
		}
	}
	w.b = append(append(append(append(w.b, keyword...), ' '), value...), '\n')
}

func (w *writer) address(keyword, value string) {
	if strings.HasPrefix(value, "<") || strings.Trim(value, " \t") != value {
		w.fail(keyword, value, errors.New("brackets or blanks around the address"))
		return
	}
	if _, err := bare(value); err != nil {
		w.fail(keyword, value, err)
		return
	}
	w.b = append(append(append(append(w.b, keyword...), " <"...), value...), ">\n"...)
}
