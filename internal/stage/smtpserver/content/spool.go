package content

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"sync"

	"zmailer/internal/mail/envelope"
)

const (
	// Memory is how much of a message is kept without a file. Bytes.
	Memory = 256 << 10
	// MaxHeader is the longest header that filters and checks read. Bytes.
	MaxHeader = 1 << 20
	// MaxFields is how many fields it may have: each is a question to a filter.
	MaxFields = 5000
)

// ErrHeader means that the header does not end within MaxHeader, or has more than
// MaxFields.
var ErrHeader = errors.New("the header is too long")

// File takes a long content: a draft in public/.
type File interface {
	io.Writer
	Content() (*io.SectionReader, error)
	Abort() error
}

// Spool is a message's content with LF line ends between its arrival and the reply. It is
// written once, then read any number of times. Up to Memory bytes are kept in memory, a longer
// content goes to a file.
//
// Crash: that file is never a message: it is not synced, has no execute bit, and the sweep
// of public/ removes it; the client has got no reply.
type Spool struct {
	create func() (File, error)
	mem    *[]byte // nil once it is closed
	file   File    // nil: all is in memory
	size   int64
	err    error
}

var buffers = sync.Pool{New: func() any { b := make([]byte, 0, 16<<10); return &b }}

// NewSpool makes an empty Spool; create is called when it grows too long for the memory.
func NewSpool(create func() (File, error)) *Spool {
	return &Spool{create: create, mem: buffers.Get().(*[]byte)}
}

// Write adds to the content. An error stays.
func (c *Spool) Write(b []byte) (int, error) {
	if c.err != nil {
		return 0, c.err
	}
	if c.file == nil && len(*c.mem)+len(b) > Memory {
		if c.file, c.err = c.create(); c.err == nil {
			_, c.err = c.file.Write(*c.mem)
		}
		*c.mem = (*c.mem)[:0]
		if c.err != nil {
			return 0, c.err
		}
	}
	if c.file == nil {
		*c.mem = append(*c.mem, b...)
	} else if _, c.err = c.file.Write(b); c.err != nil {
		return 0, c.err
	}
	c.size += int64(len(b))
	return len(b), nil
}

// Size returns how much was written.
func (c *Spool) Size() int64 { return c.size }

// From reads the content from an offset to its end. Readers are independent of each other.
func (c *Spool) From(off int64) (io.Reader, error) {
	if c.err != nil {
		return nil, c.err
	}
	if c.file == nil {
		return bytes.NewReader((*c.mem)[off:]), nil
	}
	all, err := c.file.Content()
	if err != nil {
		return nil, err
	}
	return io.NewSectionReader(all, off, c.size-off), nil
}

// copies are for contents that come from a file.
var copies = sync.Pool{New: func() any { return new([64 << 10]byte) }}

// CopyTo writes the content from an offset to its end.
func (c *Spool) CopyTo(w io.Writer, off int64) error {
	r, err := c.From(off)
	if err != nil {
		return err
	}
	if all, ok := r.(*bytes.Reader); ok {
		_, err := all.WriteTo(w)
		return err
	}
	b := copies.Get().(*[64 << 10]byte)
	defer copies.Put(b)
	_, err = io.CopyBuffer(w, r, b[:])
	return err
}

// Close gives the memory back and removes the file.
func (c *Spool) Close() error {
	if c.mem == nil {
		return nil
	}
	if cap(*c.mem) <= Memory {
		*c.mem = (*c.mem)[:0]
		buffers.Put(c.mem)
	}
	c.mem = nil
	c.err = io.ErrClosedPipe
	if c.file == nil {
		return nil
	}
	return c.file.Abort()
}

// header is the header of a content.
type header struct {
	fields []envelope.Field
	length int64 // of the header with the empty line behind it, if there is one
	empty  bool  // that line is there
}

// header reads the header, which ends before the first empty line.
func (c *Spool) header() (header, error) {
	if c.err != nil {
		return header{}, c.err
	}
	if c.file == nil {
		// A copy: the memory goes back to the pool, and fields may outlive it.
		return split(append([]byte(nil), c.headBytes(*c.mem)...), c.size)
	}
	all, err := c.file.Content()
	if err != nil {
		return header{}, err
	}
	b := make([]byte, 0, 32<<10)
	for {
		n, err := io.ReadFull(all, b[len(b):cap(b)])
		b = b[:len(b)+n]
		whole := errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
		if err != nil && !whole {
			return header{}, fmt.Errorf("read a spooled message: %w", err)
		}
		if end := headerEnd(b); end >= 0 || whole || len(b) > MaxHeader {
			return split(c.headBytes(b), c.size)
		}
		b = append(make([]byte, 0, 2*cap(b)), b...)
	}
}

// headBytes returns the header in b with its empty line, all of b if it does not end there.
func (c *Spool) headBytes(b []byte) []byte {
	if end := headerEnd(b); end >= 0 {
		return b[:end+1]
	}
	return b
}

// headerEnd returns the position of the empty line, -1 if there is none.
func headerEnd(b []byte) int {
	if len(b) > 0 && b[0] == '\n' {
		return 0
	}
	if i := bytes.Index(b, []byte("\n\n")); i >= 0 {
		return i + 1
	}
	return -1
}

// split parts the header of a message of that size.
func split(b []byte, size int64) (header, error) {
	if len(b) > MaxHeader {
		return header{}, ErrHeader
	}
	h := header{length: int64(len(b))}
	if end := headerEnd(b); end >= 0 {
		b, h.empty = b[:end], true
	} else if int64(len(b)) < size {
		return header{}, ErrHeader
	}
	if countFields(b) > MaxFields {
		return header{}, ErrHeader
	}
	h.fields = envelope.Fields(b)
	return h, nil
}

// countFields counts lines that do not continue the one before.
func countFields(b []byte) (n int) {
	for i, ch := range b {
		if ch != ' ' && ch != '\t' && (i == 0 || b[i-1] == '\n') {
			n++
		}
	}
	return n
}
