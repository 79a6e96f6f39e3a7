package taproto

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
)

// MaxLine is the longest line that is read as more than a comment. Bytes.
const MaxLine = 1 << 20

// MaxSkipped is how much without a newline is read before the other side is given up:
// ErrEndless. Bytes.
const MaxSkipped = 16 << 20

// keptOfLong is how much of a longer line is kept for the log. Bytes.
const keptOfLong = 4 << 10

// Reader reads the lines of one side. A last line without its newline is dropped.
type Reader struct {
	r    *bufio.Reader
	long []byte // a line that did not fit the buffer
}

// NewReader reads from r with a buffer of its own.
func NewReader(r io.Reader) *Reader {
	return &Reader{r: bufio.NewReaderSize(r, 8<<10)}
}

// Line reads the next line of an agent. A line above MaxLine is a comment and cut.
func (r *Reader) Line() (Line, error) {
	b, whole, err := r.next()
	if err != nil {
		return Line{}, err
	}
	if !whole {
		return Line{Text: newlines(b)}, nil
	}
	return ParseLine(b), nil
}

// Command reads the next line of a scheduler. After ErrCommand the next one may be
// read; any other error is the connection's.
func (r *Reader) Command() (Command, error) {
	b, whole, err := r.next()
	if err != nil {
		return Command{}, err
	}
	if !whole {
		return Command{}, fmt.Errorf("%w: longer than %d bytes: %.60q", ErrCommand, MaxLine, b)
	}
	return ParseCommand(b)
}

// Ready reports that another whole line is in the buffer: the next call does not wait.
func (r *Reader) Ready() bool {
	b, _ := r.r.Peek(r.r.Buffered())
	return bytes.IndexByte(b, '\n') >= 0
}

// next returns the next line without its newline, good until the next call. whole is
// false for the start of one that is too long.
func (r *Reader) next() (line []byte, whole bool, err error) {
	part, err := r.r.ReadSlice('\n')
	if err == nil {
		return part[:len(part)-1], true, nil
	}
	if !errors.Is(err, bufio.ErrBufferFull) {
		return nil, false, err
	}
	r.long = append(r.long[:0], part...)
	whole = true
	for read := len(part); errors.Is(err, bufio.ErrBufferFull); read += len(part) {
		if read > MaxSkipped {
			return nil, false, fmt.Errorf("%w: more than %d bytes", ErrEndless, MaxSkipped)
		}
		part, err = r.r.ReadSlice('\n')
		if whole && len(r.long)+len(part) > MaxLine+1 {
			whole = false
			r.long = append([]byte(nil), r.long[:keptOfLong]...)
		}
		if whole {
			r.long = append(r.long, part...)
		}
	}
	if err != nil {
		return nil, false, err
	}
	line = bytes.TrimSuffix(r.long, []byte{'\n'})
	if cap(r.long) > 64<<10 {
		r.long = nil
	}
	return line, whole, nil
}
