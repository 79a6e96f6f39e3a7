package session

import (
	"bytes"
	"errors"
	"fmt"
	"io"
)

// input is where content comes from, in pieces.
type input interface {
	peek() []byte // the bytes that are there; the reader may change those that it skips
	skip(n int)
	more() error // waits until peek is longer; errEnd: the content ends here
}

// endOfData ends the content after DATA, at the begin of a line.
const endOfData = ".\r\n"

// errEnd is the end of a content that knows its length. It is not io.EOF: that is a
// client that went away.
var errEnd = errors.New("end of the content")

// Content is the content of one message on its way from SMTP's form to a message file's: a
// line ends in LF instead of CRLF, and a dot that was put before a line's own is taken away
// (RFC 5321 section 4.5.2). It needs constant memory.
type Content struct {
	// RefuseBareLF has a line that ends in LF without CR end in ErrBareLF (SMTPBARELF): some
	// servers take such a line for the end of a message, and commands behind it for commands.
	RefuseBareLF bool

	in     input
	dots   bool // DATA: dots are stuffed and a line with one alone ends the message; BDAT: neither
	limit  int64
	size   int64 // bytes so far, as RFC 1870 section 4 counts them: line ends are two, stuffed dots none
	start  bool  // the next byte begins a line
	cr     bool  // a CR was read and nothing behind it yet
	out    io.Writer
	err    error // of out, ErrTooLarge or ErrBareLF: the rest is read but not written; see fail
	broken error // ErrLost or ErrAbandoned
}

// Discarder is a writer that can remove what was written to it. Discard is called as soon as
// the message is refused: its client may go on sending for long.
type Discarder interface{ Discard() }

// Size returns the number of bytes read, line ends counted as two.
func (c *Content) Size() int64 { return c.size }

// firstPiece is what has to be there before a file is made for it. Bytes.
const firstPiece = 512

// Wait waits for the first bytes; after DATA for so many that a client that sends them one by one
// has no file meanwhile, or for the end. Its error is ErrLost or ErrAbandoned.
func (c *Content) Wait() error {
	for !c.hasBegun(c.in.peek()) {
		if err := c.in.more(); err == errEnd {
			return nil
		} else if err != nil {
			return c.lost(err)
		}
	}
	return nil
}

// hasBegun reports whether b, the first bytes, are enough.
func (c *Content) hasBegun(b []byte) bool {
	if !c.dots || len(b) >= firstPiece {
		return len(b) > 0
	}
	return bytes.HasPrefix(b, []byte(endOfData)) || bytes.Contains(b, []byte("\r\n"+endOfData))
}

// Refuse has CopyTo read the content without writing it, and return err.
func (c *Content) Refuse(err error) { c.err = err }

// CopyTo writes the message to out. It reads all of the message, whatever becomes of
// out: an error of out or of the size is returned when the end has been seen. ErrLost and
// ErrAbandoned mean that the end has not come.
func (c *Content) CopyTo(out io.Writer) error {
	end, err := c.copyTo(out)
	if !end {
		return c.lost(err)
	}
	return err
}

// lost notes that the end of the content will not come.
func (c *Content) lost(err error) error {
	if c.broken = err; !errors.Is(err, ErrAbandoned) {
		c.broken = fmt.Errorf("%w: %w", ErrLost, err)
	}
	return c.broken
}

// copyTo is CopyTo; without end, err is the input's.
func (c *Content) copyTo(out io.Writer) (end bool, err error) {
	c.start, c.out = true, out
	for {
		used, end := c.step(c.in.peek())
		c.in.skip(used)
		if end {
			return true, c.err
		}
		switch err := c.in.more(); err {
		case nil:
		case errEnd:
			if c.cr {
				c.emit([]byte{'\r'})
			}
			return true, c.err
		default:
			return false, err
		}
	}
}

// step works on what there is and returns how many bytes of it are used up; what may
// be a part of the line that ends DATA is left until more is known. It changes b: lines
// move together there, so that out gets them in one piece.
func (c *Content) step(b []byte) (used int, end bool) {
	i, n := 0, 0 // b[:n] is for out, b[i:] is not read yet
	if c.cr && len(b) > 0 {
		c.cr = false
		if b[0] == '\n' {
			c.size++
			c.start = true
			i, n = 1, 1
		} else {
			c.emit([]byte{'\r'})
		}
	}
	for i < len(b) && !end {
		if c.start && c.dots && b[i] == '.' {
			rest := b[i:min(len(b), i+len(endOfData))]
			if string(rest) == endOfData {
				i += len(endOfData)
				end = true
				continue
			}
			if endOfData[:len(rest)] == string(rest) {
				break
			}
			i++
		}
		line := b[i:]
		c.start = false
		j := bytes.IndexByte(line, '\n')
		switch {
		case j < 0:
			i = len(b)
			if k := len(line) - 1; k >= 0 && line[k] == '\r' {
				line = line[:k]
				c.cr = true
			}
		case j > 0 && line[j-1] == '\r':
			i += j + 1
			line = line[:j]
			line[j-1] = '\n'
			c.size++
			c.start = true
		default:
			// A bare LF: no line of SMTP ends here.
			if c.RefuseBareLF && c.err == nil {
				c.fail(ErrBareLF)
			}
			i += j + 1
			line = line[:j+1]
		}
		n += copy(b[n:], line)
	}
	c.emit(b[:n])
	return i, end
}

// emit writes until the first error.
func (c *Content) emit(b []byte) {
	c.size += int64(len(b))
	if c.err == nil && c.limit > 0 && c.size > c.limit {
		c.fail(ErrTooLarge)
	}
	if c.err == nil && len(b) > 0 {
		if _, err := c.out.Write(b); err != nil {
			c.fail(err)
		}
	}
}

// fail has the rest of the content read and not written.
func (c *Content) fail(err error) {
	c.err = err
	if d, ok := c.out.(Discarder); ok {
		d.Discard()
	}
}
