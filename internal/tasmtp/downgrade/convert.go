package downgrade

import (
	"encoding/base64"
	"errors"
	"io"
)

// errChanged is a message that is not the one that was inspected.
var errChanged = errors.New("convert the message: it is not what it was a moment ago")

// converter writes what a walker reads as the plan has it.
type converter struct {
	walker walker
	plan   *Plan
	next   int // choice of the next part
	now    choice

	out  []byte // converted and not read yet, from at on
	at   int
	last byte // that was converted

	line  int      // length of the line of an encoding
	cr    bool     // a CR is held, which may belong to a line end
	space byte     // quoted-printable: white space that may end its line
	rest  [57]byte // base64: what makes no line yet
	n     int
}

// Read converts as much as is asked for.
func (c *converter) Read(p []byte) (int, error) {
	for c.at == len(c.out) {
		if c.walker.err != nil {
			return 0, c.walker.err
		}
		c.out, c.at = c.out[:0], 0
		c.walker.step()
		if n := len(c.out); n > 0 {
			c.last = c.out[n-1]
		}
		if c.walker.err == io.EOF && c.last != '\n' && c.now.method != keep {
			c.out = append(c.out, '\n')
		}
	}
	n := copy(p, c.out[c.at:])
	c.at += n
	return n, nil
}

func (c *converter) open(p *part, header []byte) {
	if c.next == len(c.plan.choices) {
		c.walker.fail(errChanged)
		return
	}
	c.now = c.plan.choices[c.next]
	c.next++
	c.out = append(c.out, c.now.edit(header, p.top)...)
	c.line, c.space, c.n, c.cr = 0, 0, 0, false
}

// frame replaces what a server would not take in text that nobody reads (RFC 2046
// §5.1.1).
func (c *converter) frame(b []byte, text bool) {
	if !text || c.plan.eight {
		c.out = append(c.out, b...)
		return
	}
	for _, ch := range b {
		if ch >= 0x80 || ch == 0 {
			ch = '?'
		}
		c.out = append(c.out, ch)
	}
}

func (c *converter) content(b []byte) {
	switch c.now.method {
	case keep:
		c.out = append(c.out, b...)
	default:
		for _, ch := range b {
			c.encode(ch)
		}
	}
}

// encode encodes a byte. Text that was stored with CRLF has the same line ends as other
// text.
func (c *converter) encode(ch byte) {
	if c.now.raw {
		c.gather(ch)
		return
	}
	if ch == '\n' {
		c.cr = false
	}
	c.endCR()
	switch {
	case ch == '\r':
		c.cr = true
	case c.now.method == quoted:
		c.quote(ch)
	default:
		if ch == '\n' {
			c.gather('\r') // RFC 2045 §6.8: text is encoded in canonical form
		}
		c.gather(ch)
	}
}

// endCR encodes a CR that no line end has followed.
func (c *converter) endCR() {
	if !c.cr {
		return
	}
	c.cr = false
	if c.now.method == quoted {
		c.quote('\r')
	} else {
		c.gather('\r')
	}
}

// close ends a leaf; the line end behind it is its boundary's.
func (c *converter) close() error {
	c.endCR()
	switch c.now.method {
	case quoted:
		c.endSpace()
	case base64d:
		c.writeLine()
	}
	return nil
}

const hex = "0123456789ABCDEF"

// quote encodes a byte (RFC 2045 §6.7).
func (c *converter) quote(ch byte) {
	switch {
	case ch == '\n':
		c.endSpace()
		c.out = append(c.out, '\n')
		c.line = 0
	case ch == ' ' || ch == '\t':
		c.writeSpace()
		c.space = ch
	case ch > ' ' && ch < 0x7f && ch != '=':
		c.writeSpace()
		c.room(1)
		c.out = append(c.out, ch)
	default:
		c.writeSpace()
		c.room(3)
		c.out = append(c.out, '=', hex[ch>>4], hex[ch&15])
	}
}

// writeSpace writes held white space that something follows.
func (c *converter) writeSpace() {
	if c.space != 0 {
		c.room(1)
		c.out = append(c.out, c.space)
		c.space = 0
	}
}

// endSpace writes held white space at the end of a line, where it must be encoded.
func (c *converter) endSpace() {
	if c.space != 0 {
		c.room(3)
		c.out = append(c.out, '=', hex[c.space>>4], hex[c.space&15])
		c.space = 0
	}
}

// room makes a soft line break if n characters and one of these do not fit into 76.
func (c *converter) room(n int) {
	if c.line+n > 75 {
		c.out = append(c.out, "=\n"...)
		c.line = 0
	}
	c.line += n
}

// gather takes a byte for base64.
func (c *converter) gather(ch byte) {
	c.rest[c.n] = ch
	if c.n++; c.n == len(c.rest) {
		c.writeLine()
	}
}

// writeLine writes a line of base64 behind the one before.
func (c *converter) writeLine() {
	if c.n == 0 {
		return
	}
	if c.line > 0 {
		c.out = append(c.out, '\n')
	}
	c.out = base64.StdEncoding.AppendEncode(c.out, c.rest[:c.n])
	c.line, c.n = 1, 0
}
