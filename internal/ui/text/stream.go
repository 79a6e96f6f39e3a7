package text

import (
	"bufio"
	"io"
	"time"
)

// Stream buffers output and passes it on soon: the first of it at once, then
// a few times a second, or when there is much.
type Stream struct {
	*bufio.Writer
	to     io.Writer
	passed time.Time
}

const (
	streamBuffer = 32 << 10
	streamEvery  = 100 * time.Millisecond
)

func NewStream(w io.Writer) *Stream {
	return &Stream{Writer: bufio.NewWriterSize(w, streamBuffer), to: w}
}

// To returns where it goes: term.For uses it.
func (s *Stream) To() io.Writer { return s.to }

// Tick passes on what waits if it is time to.
func (s *Stream) Tick() error {
	if s.Buffered() == 0 || time.Since(s.passed) < streamEvery {
		return nil
	}
	return s.Flush()
}

func (s *Stream) Flush() error {
	s.passed = time.Now()
	return s.Writer.Flush()
}
