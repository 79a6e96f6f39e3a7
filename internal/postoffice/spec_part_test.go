package postoffice

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"zmailer/internal/run/assert"
)

// The end of a file is read whole, however small the buffer is.
func TestReadEndReadsToTheEnd(t *testing.T) {
	p, dir := newPostOffice(t, 0)
	text := bytes.Repeat([]byte("0123456789\n"), 1000)
	assert.Must(t, os.WriteFile(filepath.Join(dir, Transport, "7-1"), text, 0o600))
	s := assert.Get(p.Queue.Open("7-1"))(t)
	defer s.Close()
	for _, buf := range [][]byte{nil, make([]byte, 7), make([]byte, len(text))} {
		if b, err := s.ReadEnd(buf, 11); err != nil || !bytes.Equal(b, text[11:]) {
			t.Errorf("buffer of %d: got %d bytes, %v, want %d", len(buf), len(b), err, len(text)-11)
		}
	}
	if size, err := s.Size(); err != nil || size != int64(len(text)) {
		t.Errorf("got size %d, %v, want %d", size, err, len(text))
	}
}
