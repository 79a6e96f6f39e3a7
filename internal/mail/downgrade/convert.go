package downgrade

import (
	"bytes"
	"encoding/base64"
	"errors"
	"io"
)

// errChanged is a message that is not the one that was inspected.
var errChanged = errors.New("convert the message: it has changed since it was inspected")

// converter writes what a walker reads as the plan has it.
type converter struct {
	walker walker
	plan   *Plan
	next   int // choice of the next part
	now    choice

	out  []byte // converted and not read yet, from at on
	at   int
	last byte // that was converted

	line   int      // length of the line of an encoding
	broken bool     // quoted-printable: it begins behind a soft line break of ours
	glued  bool     // quoted-printable: no line break is allowed before the next byte
	cr     bool     // a CR is held, which may belong to a line end
	space  byte     // quoted-printable: white space that may end its line
	held   []byte   // quoted-printable that is escaped: what the next bytes give a meaning
	rest   [57]byte // base64: what makes no line yet
	n      int
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

func (c *converter) open(p *part, header []byte) error {
	if c.next == len(c.plan.choices) {
		return errChanged
	}
	c.now = c.plan.choices[c.next]
	c.next++
	c.out = append(c.out, c.now.edit(header, p.top)...)
	c.line, c.space, c.n, c.cr, c.broken, c.glued = 0, 0, 0, false, false, false
	c.held = c.held[:0]
	return nil
}

func (c *converter) frame(b []byte) { c.out = append(c.out, b...) }

func (c *converter) content(b []byte) {
	switch c.now.method {
	case keep:
		c.out = append(c.out, b...)
	case escape:
		for _, ch := range b {
			c.escape(ch)
		}
	case wrap:
		c.wrap(b)
	case quoted:
		for _, ch := range b {
			// Most bytes are literal, in the middle of a line.
			if class[ch] == 0 && ch > '-' && c.line < 75 && c.space == 0 && !c.cr {
				c.out = append(c.out, ch)
				c.line++
				continue
			}
			c.encode(ch)
		}
	case base64d:
		for len(b) > 0 {
			run := b
			if !c.now.raw {
				if i := bytes.IndexByte(run, '\n'); i >= 0 {
					run = run[:i]
				}
				if i := bytes.IndexByte(run, '\r'); i >= 0 {
					run = run[:i]
				}
			}
			if c.cr || len(run) == 0 {
				c.encode(b[0])
				b = b[1:]
				continue
			}
			b = b[len(run):]
			c.gatherAll(run)
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
func (c *converter) close(string) error {
	c.endCR()
	switch c.now.method {
	case quoted:
		c.endSpace()
	case base64d:
		c.writeLine()
	case escape:
		c.endHeld()
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
		c.line, c.broken = 0, false
	case ch == ' ' || ch == '\t':
		c.writeSpace()
		c.space = ch
	case ch > ' ' && ch < 0x7f && ch != '=':
		c.writeSpace()
		c.plain(ch)
	default:
		c.writeSpace()
		c.code(ch)
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
		c.code(c.space)
		c.space = 0
	}
}

// plain writes a character as it is. A line that we began must not look like
// a boundary.
func (c *converter) plain(ch byte) {
	c.room(1)
	if ch == '-' && c.line == 1 && c.broken {
		c.out = append(c.out, "=2D"...)
		c.line = 3
		return
	}
	c.out = append(c.out, ch)
}

// code writes a byte in hexadecimal digits.
func (c *converter) code(ch byte) {
	c.room(3)
	c.out = append(c.out, '=', hex[ch>>4], hex[ch&15])
}

// room makes a soft line break if n characters and one of these do not fit into 76.
func (c *converter) room(n int) {
	if c.line+n > 75 && !c.glued {
		c.out = append(c.out, "=\n"...)
		c.line, c.broken = 0, true
	}
	c.line += n
	c.glued = false
}

// gather takes a byte for base64.
func (c *converter) gather(ch byte) {
	c.rest[c.n] = ch
	if c.n++; c.n == len(c.rest) {
		c.writeLine()
	}
}

func (c *converter) gatherAll(b []byte) {
	for len(b) > 0 {
		n := copy(c.rest[c.n:], b)
		b = b[n:]
		if c.n += n; c.n == len(c.rest) {
			c.writeLine()
		}
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
