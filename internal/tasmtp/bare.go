package tasmtp

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"sync"
)

// tame takes bare CRs out of a letter before it is signed and sent: a server
// must not be sent any (RFC 5321 §2.3.8), and some take one for a line end, so that CR,
// dot, CR ends the message for them and begins another. One before a line end, as in text
// that came with CRLF, is left out; for any other stands a blank, as Postfix has it. A
// bare LF is a line end in a message file and goes out as one.
//
// A letter without a CR is read through once more, and nothing else.
func (c *content) tame() error {
	if bytes.IndexByte(c.header, '\r') >= 0 {
		header := bytes.ReplaceAll(c.header, []byte("\r\n"), []byte{'\n'})
		header = bytes.ReplaceAll(header, []byte{'\r'}, []byte{' '})
		c.size -= int64(len(c.header) - len(header))
		c.header = header
	}
	found, ends, err := countCRs(c.body())
	if err != nil {
		return fmt.Errorf("read the message: %w", err)
	}
	if found {
		c.size -= ends
		body := c.body
		c.body = func() io.Reader { return withoutCR{bufio.NewReaderSize(body(), tameBuffer)} }
	}
	return nil
}

// tameBuffer is how much of a body is looked at once. Bytes.
const tameBuffer = 32 << 10

var tameBuffers = sync.Pool{New: func() any { return new([tameBuffer]byte) }}

// countCRs tells whether there is a CR, and how many of them stand before an LF.
func countCRs(r io.Reader) (found bool, ends int64, err error) {
	pooled := tameBuffers.Get().(*[tameBuffer]byte)
	defer tameBuffers.Put(pooled)
	buf := pooled[:]
	last := false // the byte before was a CR
	for {
		n, err := r.Read(buf)
		if n > 0 {
			b := buf[:n]
			if last && b[0] == '\n' {
				ends++
			}
			if bytes.IndexByte(b, '\r') >= 0 {
				found = true
				ends += int64(bytes.Count(b, []byte("\r\n")))
			}
			last = b[n-1] == '\r'
		}
		if err == io.EOF {
			return found, ends, nil
		}
		if err != nil {
			return found, ends, err
		}
	}
}

// withoutCR reads what tame says.
type withoutCR struct{ r *bufio.Reader }

func (w withoutCR) Read(p []byte) (int, error) {
	for len(p) > 0 {
		if _, err := w.r.Peek(1); err != nil {
			return 0, err
		}
		b, _ := w.r.Peek(min(w.r.Buffered(), len(p))) // is there
		i := bytes.IndexByte(b, '\r')
		if i < 0 {
			i = len(b)
		}
		if i > 0 {
			n := copy(p, b[:i])
			_, err := w.r.Discard(n)
			return n, err
		}
		next, err := w.r.Peek(2)
		if err != nil && err != io.EOF {
			return 0, err
		}
		if _, err := w.r.Discard(1); err != nil {
			return 0, err
		}
		if len(next) < 2 || next[1] != '\n' {
			p[0] = ' '
			return 1, nil
		}
	}
	return 0, nil
}
