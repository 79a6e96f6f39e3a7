package smtpserver

import (
	"bytes"
	"errors"
	"io"
	"sync"
)

// errTooLarge means that a message has more bytes than MaxSize.
var errTooLarge = errors.New("message too large")

// input is where content comes from, in pieces.
type input interface {
	peek() []byte // what is there; the reader may change it up to what it skips
	skip(n int)
	more() error // waits until peek is longer; io.EOF: it will not be
}

// pipeInput is the content of BDAT chunks as go-smtp passes them on.
type pipeInput struct {
	r          io.Reader
	buf        *[wireBuffer]byte
	head, tail int
}

func newPipeInput(r io.Reader) *pipeInput {
	return &pipeInput{r: r, buf: wireBuffers.Get().(*[wireBuffer]byte)}
}

func (p *pipeInput) close() { wireBuffers.Put(p.buf) }

func (p *pipeInput) peek() []byte { return p.buf[p.head:p.tail] }
func (p *pipeInput) skip(n int)   { p.head += n }

func (p *pipeInput) more() error {
	if p.head > 0 {
		p.tail = copy(p.buf[:], p.buf[p.head:p.tail])
		p.head = 0
	}
	for {
		n, err := p.r.Read(p.buf[p.tail:])
		p.tail += n
		if n > 0 {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// content copies one message from SMTP's form to a message file's: a line ends in
// LF instead of CRLF, and a dot that was put before a line's own is taken away (RFC
// 5321 §4.5.2).
type content struct {
	in    input
	dots  bool // DATA: dots are stuffed and a line with one alone ends the message; BDAT: neither
	limit int64
	size  int64 // bytes so far, as RFC 1870 §4 counts them: line ends are two, stuffed dots none
	start bool  // the next byte begins a line
}

// copyTo writes the message to out. It reads all of the message, whatever becomes of
// out: an error of out or of the size comes when the end has been seen, and end is
// true then. Without end, err is the input's.
func (c *content) copyTo(out io.Writer) (end bool, err error) {
	w := stickyWriter{w: out}
	c.start = true
	for {
		used, end := c.step(c.in.peek(), &w)
		c.in.skip(used)
		if c.limit > 0 && c.size > c.limit && w.err == nil {
			w.err = errTooLarge
		}
		if end {
			return true, w.err
		}
		switch err := c.in.more(); {
		case err == nil:
		case errors.Is(err, io.EOF) && !c.dots:
			// A CR may stand at the very end.
			c.emit(&w, c.in.peek())
			if c.limit > 0 && c.size > c.limit && w.err == nil {
				w.err = errTooLarge
			}
			return true, w.err
		default:
			return false, err
		}
	}
}

// step works on what there is and tells how many bytes of it are used up; what is
// left, two bytes at most, needs more behind it to be understood. It changes b.
func (c *content) step(b []byte, w *stickyWriter) (used int, end bool) {
	i := 0
	for i < len(b) {
		if c.start && c.dots && b[i] == '.' {
			rest := b[i:]
			if len(rest) < len(endOfData) && endOfData[:len(rest)] == string(rest) {
				return i, false
			}
			if string(rest[:min(len(rest), len(endOfData))]) == endOfData {
				return i + len(endOfData), true
			}
			i++
		}
		c.start = false
		j := bytes.IndexByte(b[i:], '\n')
		switch {
		case j < 0:
			k := len(b)
			if k > i && b[k-1] == '\r' {
				k--
			}
			c.emit(w, b[i:k])
			return k, false
		case j > 0 && b[i+j-1] == '\r':
			b[i+j-1] = '\n'
			c.emit(w, b[i:i+j])
			c.size++
			c.start = true
		default:
			// A bare LF: no line of SMTP ends here.
			c.emit(w, b[i:i+j+1])
		}
		i += j + 1
	}
	return i, false
}

func (c *content) emit(w *stickyWriter, b []byte) {
	c.size += int64(len(b))
	w.write(b)
}

// stickyWriter writes until the first error and remembers it.
type stickyWriter struct {
	w   io.Writer
	err error
}

func (s *stickyWriter) write(b []byte) {
	if s.err == nil {
		_, s.err = s.w.Write(b)
	}
}

// envelopeBuffers hold the envelope lines of a message while they are made.
var envelopeBuffers = sync.Pool{New: func() any { return new([]byte) }}
