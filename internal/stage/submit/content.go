package submit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
)

// content reads a message unchanged. With dots a line that holds nothing but a
// dot ends it, as the end of the input does.
type content struct {
	r     io.Reader
	dots  bool
	buf   []byte // read and not given on
	store []byte // buf's memory
	start bool   // buf begins a line
	err   error  // of r
}

func newContent(r io.Reader, dots bool) *content {
	return &content{r: r, dots: dots, start: true}
}

func (c *content) Read(p []byte) (int, error) {
	if !c.dots {
		return c.r.Read(p)
	}
	if len(p) == 0 {
		return 0, nil
	}
	for {
		n, end := c.known()
		if n > 0 {
			n = copy(p, c.buf[:n])
			c.start = c.buf[n-1] == '\n'
			c.buf = c.buf[n:]
			return n, nil
		}
		if end {
			c.buf, c.err = nil, io.EOF
		}
		if c.err != nil {
			return 0, c.err
		}
		c.fill()
	}
}

// known returns how many bytes of buf are certainly content, or that the message ends
// here.
func (c *content) known() (n int, end bool) {
	b := c.buf
	from := 0
	if c.start && len(b) > 0 && b[0] == '.' {
		switch rest := b[1:]; {
		case len(rest) == 0, len(rest) == 1 && rest[0] == '\r':
			return 0, errors.Is(c.err, io.EOF) // the input's end ends the line too
		case rest[0] == '\n', rest[0] == '\r' && rest[1] == '\n':
			return 0, true
		}
		from = 1
	}
	if i := bytes.Index(b[from:], []byte("\n.")); i >= 0 {
		return from + i + 1, false
	}
	return len(b), false
}

// fill reads more behind the rest of buf, two bytes at most.
func (c *content) fill() {
	if c.store == nil {
		c.store = make([]byte, copyBuffer)
	}
	n := copy(c.store, c.buf)
	m, err := c.r.Read(c.store[n:])
	c.buf, c.err = c.store[:n+m], err
}

// interruptible reads from a descriptor whose read cannot be ended, such as a pipe
// or a terminal, so that a signal ends the wait.
type interruptible struct {
	ctx   context.Context
	ask   chan []byte
	reply chan readResult
	buf   []byte
	left  []byte
	err   error
}

type readResult struct {
	n   int
	err error
}

// newInterruptible starts a reader that goes away after the input's next byte or end
// once ctx is done.
func newInterruptible(ctx context.Context, r io.Reader) *interruptible {
	i := &interruptible{ctx: ctx, ask: make(chan []byte), reply: make(chan readResult, 1), buf: make([]byte, copyBuffer)}
	go func() {
		for {
			select {
			case b := <-i.ask:
				n, err := r.Read(b)
				i.reply <- readResult{n, err}
				if err != nil {
					return
				}
			case <-ctx.Done():
				return
			}
		}
	}()
	return i
}

func (i *interruptible) Read(p []byte) (int, error) {
	for len(i.left) == 0 {
		if i.err != nil {
			return 0, i.err
		}
		select {
		case i.ask <- i.buf:
		case <-i.ctx.Done():
			i.err = errInterrupted
			continue
		}
		select {
		case got := <-i.reply:
			i.left = i.buf[:got.n]
			if i.err = got.err; i.err != nil && !errors.Is(i.err, io.EOF) {
				i.err = &Error{Code: inputCode(i.err), Err: fmt.Errorf("standard input: %w", i.err)}
			}
		case <-i.ctx.Done():
			i.err = errInterrupted
		}
	}
	n := copy(p, i.left)
	i.left = i.left[n:]
	return n, nil
}
