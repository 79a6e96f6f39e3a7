package tasmtp

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"sync"

	"zmailer/internal/mail/downgrade"
)

// tame takes bare CRs out of a letter before it is signed and sent: a server
// must not be sent any (RFC 5321 §2.3.8), and some take one for a line end, so that CR,
// dot, CR ends the message for them and begins another. One before a line end, as in text
// that came with CRLF, is left out; for any other stands a blank, as Postfix has it. A
// bare LF is a line end in a message file and goes out as one. For a NUL between the
// beginning of a line and a dot stands a blank as well: a server that drops NULs would find
// a dot there that was not doubled. Other NULs go as they came.
//
// A letter without such bytes is read through once more, and nothing else.
func (c *content) tame() error {
	if bytes.IndexByte(c.header, '\r') >= 0 || bytes.IndexByte(c.header, 0) >= 0 {
		// Text with CRLF may be all header: it has no empty line.
		header, err := io.ReadAll(&tamed{r: bufio.NewReader(bytes.NewReader(c.header)), start: true})
		if err != nil {
			return fmt.Errorf("read the header: %w", err)
		}
		c.size -= int64(len(c.header) - len(header))
		c.header = header
	}
	if err := c.look(&downgrade.Scan{}); err != nil {
		return err
	}
	if c.wild {
		c.size -= c.ends
		body := c.body
		c.body = func() io.Reader { return &tamed{r: bufio.NewReaderSize(body(), tameBuffer), start: true} }
	}
	return nil
}

// look reads the body through, if it has not been: for what tame changes, and for what a
// scan looks for. Where the scan finds something the body will be another, and what tame
// would change is not known yet.
func (c *content) look(scan *downgrade.Scan) error {
	if c.looked || scan.Found() {
		return nil
	}
	found, ends, err := wild(c.body(), scan)
	if err != nil {
		return fmt.Errorf("read the message: %w", err)
	}
	c.looked, c.wild, c.ends = !scan.Found(), found, ends
	return nil
}

// tameBuffer is how much of a body is looked at once. Bytes.
const tameBuffer = 32 << 10

var tameBuffers = sync.Pool{New: func() any { return new([tameBuffer]byte) }}

// wild reports whether there is a CR, or a NUL at the beginning of a line, and how many CRs
// are before an LF. It shows what it reads to a scan, and ends early if that has found
// something.
func wild(r io.Reader, scan *downgrade.Scan) (found bool, ends int64, err error) {
	pooled := tameBuffers.Get().(*[tameBuffer]byte)
	defer tameBuffers.Put(pooled)
	buf := pooled[:]
	last := byte('\n') // the byte before
	for {
		n, err := r.Read(buf)
		if n > 0 {
			b := buf[:n]
			if last == '\r' && b[0] == '\n' {
				ends++
			}
			if bytes.IndexByte(b, 0) >= 0 && (last == '\n' && b[0] == 0 || bytes.Contains(b, []byte("\n\x00"))) {
				found = true
			}
			if bytes.IndexByte(b, '\r') >= 0 {
				found = true
				ends += int64(bytes.Count(b, []byte("\r\n")))
			}
			last = b[n-1]
			if scan.Body(b); scan.Found() {
				return found, ends, nil
			}
		}
		if err == io.EOF {
			return found, ends, nil
		}
		if err != nil {
			return found, ends, err
		}
	}
}

// tamed reads what tame says.
type tamed struct {
	r     *bufio.Reader
	start bool // the next byte begins a line
}

func (w *tamed) Read(p []byte) (n int, err error) {
	for n < len(p) {
		b, err := w.r.ReadByte()
		if err != nil {
			if n > 0 && err == io.EOF {
				err = nil
			}
			return n, err
		}
		switch {
		case b == '\r':
			next, err := w.r.Peek(1)
			if err != nil && err != io.EOF {
				return n, err
			}
			if err == nil && next[0] == '\n' {
				continue
			}
			b, w.start = ' ', false
		case b == 0 && w.start:
			// What follows still begins the line.
			next, err := w.r.Peek(1)
			if err != nil && err != io.EOF {
				return n, err
			}
			if err == nil && next[0] == '.' {
				b = ' '
			}
		default:
			w.start = b == '\n'
		}
		p[n] = b
		n++
	}
	return n, nil
}
