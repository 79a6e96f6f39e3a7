package main

import (
	"bufio"
	"io"
	"time"
)

// stream gathers what is written, and passes it on soon: the first of it at once, then
// a few times a second, or when there is much.
type stream struct {
	*bufio.Writer
	to     io.Writer
	passed time.Time
}

const (
	streamBuffer = 32 << 10
	streamEvery  = 100 * time.Millisecond
)

func newStream(w io.Writer) *stream {
	return &stream{Writer: bufio.NewWriterSize(w, streamBuffer), to: w}
}

// To is where it goes: paint.For asks.
func (s *stream) To() io.Writer { return s.to }

// tick passes on what waits if it is time to.
func (s *stream) tick() error {
	if s.Buffered() == 0 || time.Since(s.passed) < streamEvery {
		return nil
	}
	return s.flush()
}

func (s *stream) flush() error {
	s.passed = time.Now()
	return s.Flush()
}
