package postoffice

import (
	"errors"
	"fmt"
	"io"
)

// Size is the file's now.
func (s *Spec) Size() (int64, error) {
	info, err := s.f.Stat()
	if err != nil {
		return 0, fmt.Errorf("look at specification %s: %w", s.Name, err)
	}
	return info.Size, nil
}

// ReadEnd reads the file as it is now from an offset to its end, into a buffer or where
// that is too small into another.
func (s *Spec) ReadEnd(buf []byte, from int64) ([]byte, error) {
	b := buf[:cap(buf)]
	if len(b) == 0 {
		b = make([]byte, 1<<10)
	}
	n := 0
	for {
		m, err := s.f.ReadAt(b[n:], from+int64(n))
		n += m
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("read specification %s at %d: %w", s.Name, from, err)
		}
		b = append(b, make([]byte, len(b))...)
	}
	if n > 0 && b[n-1] == '\n' {
		s.ended = from + int64(n)
	}
	return b[:n], nil
}
