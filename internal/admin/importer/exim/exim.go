// Package exim reads the spool of an Exim: the files ID-H, ID-D and ID-J in input/ and, with
// split_spool_directory, in the directories below it.
//
// It owns nothing there; a message's files are removed when Remove is called. ID-H holds
// the envelope, those who have the message and the header; ID-D the body; ID-J who got it
// since. A message is locked as Exim locks it, by an fcntl lock of ID-D, while it is open
// here: an Exim that runs leaves it alone.
//
// Diagnostics: importer.ErrLeft: Exim has it locked, or ID-H is missing, because it was not
// received whole. Others say what is wrong with the files.
package exim

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"zmailer/internal/admin/importer"
)

// Source is the spool.
type Source struct {
	q *importer.Queue
}

// Open opens the spool in a directory.
func Open(dir string) (*Source, error) {
	q, err := importer.OpenQueue(dir, "input")
	if err != nil {
		return nil, err
	}
	return &Source{q: q}, nil
}

// Close closes it.
func (s *Source) Close() error { return s.q.Close() }

// Programs returns those that work in the spool. An Exim that runs locks its messages, and
// ours, but what comes in after the import would stay behind.
func (s *Source) Programs() []string { return []string{"exim", "exim4", "exim-4"} }

// isID reports whether s is a message ID of Exim: 6-6-2 letters and digits, since 4.97 6-11-4.
func isID(s string) bool {
	parts := strings.Split(s, "-")
	if len(parts) != 3 {
		return false
	}
	for _, p := range parts {
		for i := range len(p) {
			if b := p[i]; !('0' <= b && b <= '9' || 'A' <= b && b <= 'Z' || 'a' <= b && b <= 'z') {
				return false
			}
		}
	}
	a, b, c := len(parts[0]), len(parts[1]), len(parts[2])
	return a == 6 && (b == 6 && c == 2 || b == 11 && c == 4)
}

// List names the messages by input/[X/]ID; those without ID-H, too.
func (s *Source) List(ctx context.Context) ([]importer.Ref, error) {
	var list []importer.Ref
	seen := map[string]bool{}
	split := func(name string) bool { return len(name) == 1 }
	err := s.q.Walk("input", 1, split, func(name string) error {
		id, isPart := strings.CutSuffix(name, "-H")
		if !isPart {
			id, isPart = strings.CutSuffix(name, "-D")
		}
		if isPart && isID(path.Base(id)) && !seen[id] {
			seen[id] = true
			list = append(list, importer.Ref{Name: id})
		}
		return ctx.Err()
	})
	return list, err
}

// Open reads one, and locks it.
func (s *Source) Open(ref importer.Ref) (*importer.Message, error) {
	data, err := s.lock(ref.Name + "-D")
	if err != nil {
		return nil, err
	}
	l, err := s.message(ref, data)
	if err != nil {
		return nil, errors.Join(err, data.Close())
	}
	l.Close = data.Close
	return l, nil
}

// lock opens a data file with Exim's lock on it.
func (s *Source) lock(name string) (*os.File, error) {
	f, _, err := s.q.Open(name, true)
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, unix.EROFS) {
		f, _, err = s.q.Open(name, false)
		if err == nil {
			return f, nil
		}
	}
	if err != nil {
		return nil, err
	}
	err = unix.FcntlFlock(f.Fd(), unix.F_SETLK, &unix.Flock_t{Type: unix.F_WRLCK, Whence: io.SeekStart})
	if errors.Is(err, unix.EACCES) || errors.Is(err, unix.EAGAIN) {
		err = fmt.Errorf("locked by Exim, which receives or delivers it: %w", importer.ErrLeft)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// limits of what is read into memory. Bytes.
const (
	maxHead    = 64 << 20
	maxJournal = 64 << 20
)

func (s *Source) message(ref importer.Ref, data *os.File) (*importer.Message, error) {
	id := path.Base(ref.Name)
	text, err := s.q.Read(ref.Name+"-H", maxHead)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, &importer.Remains{Why: "there is no ID-H: it was not received completely", Key: id}
	}
	if err != nil {
		return nil, err
	}
	h, err := parseHead(id, text)
	if err != nil {
		return nil, err
	}
	journal, err := s.q.Read(ref.Name+"-J", maxJournal)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for line := range strings.Lines(string(journal)) {
		if whole, ok := strings.CutSuffix(line, "\n"); ok {
			h.done[key(whole)] = false
		}
	}
	l := &importer.Message{Key: id, Arrival: h.arrival, Write: func(w io.Writer) error { return write(h, id, data, w) }}
	if p := h.part(); len(p.Recipients) > 0 {
		l.Parts = []importer.Part{p}
	}
	l.Notes = h.notes()
	return l, nil
}

// write writes header and body.
func write(h *head, id string, data *os.File, w io.Writer) error {
	if _, err := data.Seek(0, io.SeekStart); err != nil {
		return err
	}
	in := bufio.NewReaderSize(data, 64<<10)
	first, err := in.ReadString('\n')
	if err != nil || strings.TrimSpace(first) != id+"-D" {
		return fmt.Errorf("%s-D does not begin with its name", id)
	}
	if _, err := w.Write(append(h.header, '\n')); err != nil {
		return err
	}
	if h.wire {
		return unixLines(in, w)
	}
	_, err = io.Copy(w, in)
	return err
}

// unixLines copies lines that end in CRLF as such that end in LF.
func unixLines(in *bufio.Reader, w io.Writer) error {
	cr := false
	out := bufio.NewWriterSize(w, 32<<10)
	for {
		b, err := in.ReadByte()
		if errors.Is(err, io.EOF) {
			if cr {
				err = out.WriteByte('\r')
				if err != nil {
					return err
				}
			}
			return out.Flush()
		}
		if err != nil {
			return err
		}
		if cr && b != '\n' {
			if err := out.WriteByte('\r'); err != nil {
				return err
			}
		}
		if cr = b == '\r'; cr {
			continue
		}
		if err := out.WriteByte(b); err != nil {
			return err
		}
	}
}

// Remove unlinks a message's files: ID-H first, without which it is none to Exim, and
// ID-D last, by which List finds what is left of it.
func (s *Source) Remove(ref importer.Ref) error {
	sub := strings.TrimPrefix(path.Dir(ref.Name), "input")
	removed := false
	for _, name := range []string{ref.Name + "-H", ref.Name + "-J", path.Join("msglog"+sub, path.Base(ref.Name)), ref.Name + "-D"} {
		// Crash: without ID-H the rest stays; the next import knows that it took the message,
		// and removes that.
		err := s.q.Remove(name)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		removed = removed || err == nil
	}
	if !removed {
		return fs.ErrNotExist
	}
	return nil
}
