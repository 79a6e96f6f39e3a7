package workspec

import (
	"bytes"
	"strconv"
	"time"

	"zmailer/internal/run/human"
)

// diagnostic reads a d line. ok is false for one that was torn and then ended by
// the next writer.
func (p *parser) diagnostic() (d Diagnostic, ok bool) {
	if len(p.line) < 2 {
		return d, false
	}
	head, rest, tab := bytes.Cut(p.line[2:], []byte{'\t'})
	if !tab {
		return d, false
	}
	var n [5]int64
	for i := range n {
		field, more, colon := bytes.Cut(head, []byte{':'})
		if colon == (i == len(n)-1) {
			return d, false
		}
		head = more
		if i == 3 {
			continue // always empty
		}
		if n[i], ok = number(field); !ok {
			return d, false
		}
	}
	notary, text, _ := bytes.Cut(rest, []byte{'\t'})
	return Diagnostic{
		LineOffset:   int64(p.pos),
		Reported:     Tag(p.line[1]) == TagOK,
		Recipient:    n[0],
		HeaderOffset: n[1],
		NotaryOffset: n[2],
		Time:         time.Unix(max(n[4], 0), 0),
		Notary:       ParseNotary(p.text(notary)),
		Text:         p.lines(text),
	}, true
}

// event reads an h line; ok as for diagnostic.
func (p *parser) event() (e Event, ok bool) {
	if len(p.line) < 2 || p.line[1] != ' ' {
		return e, false
	}
	stamp, rest, _ := bytes.Cut(p.line[2:], []byte{' '})
	offset, rest, _ := bytes.Cut(rest, []byte{' '})
	word, rest, _ := bytes.Cut(rest, []byte{' '})
	ms, ok1 := decimal(stamp)
	off, ok2 := decimal(offset)
	if !ok1 || !ok2 || len(word) == 0 || hasControl(word) {
		return e, false
	}
	e = Event{LineOffset: int64(p.pos), Time: time.UnixMilli(ms), Recipient: off, Event: p.text(word)}
	for len(rest) > 0 {
		word, more, _ := bytes.Cut(rest, []byte{' '})
		eq := bytes.IndexByte(word, '=')
		if eq <= 0 {
			if len(word) == 0 {
				rest = rest[1:] // the second blank that sets text off
			}
			e.Text = p.lines(rest)
			break
		}
		if hasControl(word) {
			return e, false
		}
		if e.Attrs == nil {
			e.Attrs = make([]Attr, 0, 4)
		}
		e.Attrs = append(e.Attrs, Attr{p.text(word[:eq]), p.text(word[eq+1:])})
		rest = more
	}
	return e, true
}

// lines is text with its newlines, which are CR in the file.
func (p *parser) lines(v []byte) string {
	if len(v) == 0 {
		return ""
	}
	start := p.room(len(v))
	for {
		line, rest, cr := bytes.Cut(v, []byte{'\r'})
		p.texts.Write(line)
		if !cr {
			return p.texts.String()[start:]
		}
		p.texts.WriteByte('\n')
		v = rest
	}
}

func hasControl(v []byte) bool {
	for _, c := range v {
		if human.IsControl(c) {
			return true
		}
	}
	return false
}

// number is decimal for a field in which ZMailer writes -1 for none: its agents do so for
// the offset of an N line that a recipient does not have.
func number(v []byte) (n int64, ok bool) {
	if string(v) == "-1" {
		return None, true
	}
	return decimal(v)
}

// decimal reads up to 18 digits, nothing else.
func decimal(v []byte) (n int64, ok bool) {
	if len(v) == 0 || len(v) > 18 {
		return 0, false
	}
	for _, c := range v {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = 10*n + int64(c-'0')
	}
	return n, true
}

// hexOrDecimal reads the @ line's number as C's %i does.
func hexOrDecimal(v []byte) (uint32, bool) {
	n, err := strconv.ParseUint(string(v), 0, 32)
	return uint32(n), err == nil && bytes.IndexByte(v, '_') < 0
}
