package ledger

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"zmailer/internal/disk/durable"
	"zmailer/internal/postoffice"
)

// Tail reads the journals of a postoffice as they grow. It sees every line that is
// entered while it is open, also those of a journal that is closed and folded
// meanwhile: a file that was found stays open until its last line was read.
type Tail struct {
	po    *postoffice.PostOffice
	open  []*tailed // oldest first
	begun bool      // it has looked once
	past  bool      // what was there before counts
	buf   []byte
}

// tailed is a journal that is being read.
type tailed struct {
	f    durable.File
	ino  uint64
	off  int64
	rest []byte // of a line that has no end yet
}

// NewTail makes a Tail. past: the lines that the journals hold already are read too.
// Those in base are reported by Compare, not here.
func NewTail(po *postoffice.PostOffice, past bool) *Tail {
	return &Tail{po: po, past: past, buf: make([]byte, 64<<10)}
}

// Read calls fn for each line that came since the last call. An error of fn ends it.
func (t *Tail) Read(fn func(Line) error) error {
	present, err := t.find()
	if err != nil {
		return fmt.Errorf("follow ledger: %w", err)
	}
	t.begun = true
	kept := t.open[:0]
	for i, j := range t.open {
		if err := t.read(j, fn); err != nil {
			t.open = append(kept, t.open[i:]...)
			return err
		}
		if present[j.ino] {
			kept = append(kept, j)
			continue
		}
		// Folded: no one writes to it, and its last line was read. Read only: close has
		// nothing to lose.
		_ = j.f.Close()
	}
	clear(t.open[len(kept):])
	t.open = kept
	return nil
}

// Close ends it.
func (t *Tail) Close() {
	for _, j := range t.open {
		// Read only.
		_ = j.f.Close()
	}
	t.open = nil
}

// find opens the journals that are new and gives the inodes of all.
func (t *Tail) find() (map[uint64]bool, error) {
	f := t.po.FS()
	have, err := survey(f)
	if err != nil {
		return nil, err
	}
	present := map[uint64]bool{}
	for _, name := range have.journals(0) {
		h, err := f.Open(name, os.O_RDONLY, 0)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		info, err := h.Stat()
		if err != nil {
			return nil, errors.Join(err, h.Close())
		}
		if present[info.Ino] || t.has(info.Ino) {
			present[info.Ino] = true
			_ = h.Close()
			continue
		}
		present[info.Ino] = true
		j := &tailed{f: h, ino: info.Ino}
		if !t.begun && !t.past {
			j.off = info.Size
		}
		t.open = append(t.open, j)
	}
	return present, nil
}

func (t *Tail) has(ino uint64) bool {
	for _, j := range t.open {
		if j.ino == ino {
			return true
		}
	}
	return false
}

// read gives the whole lines that a journal has more. One without its newline is under
// way, or was torn and is ended by the next one behind it.
func (t *Tail) read(j *tailed, fn func(Line) error) error {
	for {
		n, err := j.f.ReadAt(t.buf, j.off)
		j.off += int64(n)
		j.rest = append(j.rest, t.buf[:n]...)
		for {
			line, rest, ok := bytes.Cut(j.rest, []byte{'\n'})
			if !ok {
				break
			}
			l, good := ParseLine(line)
			j.rest = rest
			if !good {
				continue
			}
			if err := fn(l); err != nil {
				return err
			}
		}
		j.rest = bytes.Clone(j.rest)
		if errors.Is(err, io.EOF) || err == nil && n == 0 {
			return nil
		}
		if err != nil {
			return fmt.Errorf("follow ledger: %w", err)
		}
	}
}
