package postoffice

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"zmailer/internal/disk/durable"
)

// Spec is an open work specification, transport/NAME.
type Spec struct {
	Name string // below transport/, with its hash directories
	Info durable.Info
	p    *spool
	path string
	f    durable.File

	begun bool  // it was read
	named bool  // the name was looked at since: it was ours
	ended int64 // a size at which the file has ended with a whole line; 0: not known
}

func openSpecAt(p *spool, path, name string) (s *Spec, err error) {
	for range opens {
		if s, err = openSpecOnce(p, path, name); !errors.Is(err, ErrGone) || errors.Is(err, fs.ErrNotExist) {
			break
		}
		// It had lost its name when it was open: a summary may have taken its place.
	}
	return s, err
}

// opens is how often a specification is opened that has no name any more when it is.
const opens = 3

func openSpecOnce(p *spool, path, name string) (*Spec, error) {
	f, err := p.fs.Open(path, os.O_RDWR|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open specification %s: %w", name, gone(err))
	}
	info, err := f.Stat()
	if err == nil {
		err = p.checkTrust(path, info)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open specification %s: %w", name, err), f.Close())
	}
	return &Spec{Name: name, Info: info, p: p, path: path, f: f}, nil
}

// Read reads the whole file as it is now.
func (s *Spec) Read() ([]byte, error) { return s.ReadInto(nil) }

// ReadInto is Read into a buffer, or where that is too small into another.
func (s *Spec) ReadInto(buf []byte) ([]byte, error) {
	b, err := s.read(buf)
	if n := len(b); n > 0 && b[n-1] == '\n' {
		s.ended = int64(n)
	}
	return b, err
}

func (s *Spec) read(b []byte) ([]byte, error) {
	// One byte more than the size known, so that a short read shows the end.
	if b = b[:cap(b)]; int64(len(b)) <= s.Info.Size {
		b = make([]byte, s.Info.Size+1)
	}
	n := 0
	if !s.begun {
		// One read(2) will do, when it gives what fstat(2) said a moment ago: it was asked
		// for more.
		s.begun = true
		m, err := s.f.Read(b)
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, fmt.Errorf("read specification %s: %w", s.Name, err)
		}
		if n = m; n > 0 && int64(n) == s.Info.Size {
			return b[:n], nil
		}
	}
	for {
		m, err := s.f.ReadAt(b[n:], int64(n))
		n += m
		if errors.Is(err, io.EOF) {
			return b[:n], nil
		}
		if err != nil {
			return nil, fmt.Errorf("read specification %s: %w", s.Name, err)
		}
		b = append(b, make([]byte, len(b))...)
	}
}

// Size returns the file's now.
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

// ReadAt reads a part of the file as it is now.
func (s *Spec) ReadAt(b []byte, off int64) error {
	if _, err := s.f.ReadAt(b, off); err != nil {
		return fmt.Errorf("read %s at %d: %w", s.Name, off, err)
	}
	return nil
}

// Lock waits for the specification's flock: agents take it while they look at tags
// and set their locks, so that no two lock one recipient.
func (s *Spec) Lock() error { return s.f.WaitLock() }

// Unlock gives the flock back.
func (s *Spec) Unlock() error { return s.f.Unlock() }

// Replaced reports whether the name belongs to another file by now: somebody has put
// one in its place, as an editor does. ErrGone: no file has the name.
func (s *Spec) Replaced() (bool, error) {
	info, err := s.p.fs.Stat(s.path)
	if err != nil {
		return false, fmt.Errorf("look at %s: %w", s.Name, gone(err))
	}
	return info.Ino != s.Info.Ino || info.Dev != s.Info.Dev, nil
}

// SetTag writes a tag's bytes (workspec.LockBytes, TagBytes) at an offset, in one
// write(2). Of recipients on adjacent lines it may be all tags at once, with what
// is between them as it is.
func (s *Spec) SetTag(b []byte, off int64) error {
	// Crash: up to seven bytes of one block, old or new, or of many tags the first ones; a
	// power loss may bring the old ones back unless Sync follows.
	if _, err := s.f.WriteAt(b, off); err != nil {
		return fmt.Errorf("mark %s at %d: %w", s.Name, off, err)
	}
	return nil
}

// tornEnd ends a line that a crash or a full disk has torn. What is left of it may look
// like a whole line that says something else; behind CAN no one believes it (workspec).
const tornEnd = "\x18\n"

// Append adds whole lines at the end in one write(2), beside other writers. A torn
// line that a crash left there is ended first, so that no one reads it. ErrReplaced:
// somebody has put another file in its place before the first append.
func (s *Spec) Append(lines []byte) error {
	size, whole, err := s.end()
	if err != nil {
		return fmt.Errorf("append to %s: %w", s.Name, err)
	}
	if !whole {
		lines = append([]byte(tornEnd), lines...)
	}
	// Crash: all, a part or none of the lines; a torn one has no newline and readers
	// ignore it.
	if _, err := s.f.Append(lines); err != nil {
		return fmt.Errorf("append to %s: %w", s.Name, err)
	}
	s.ended = size + int64(len(lines))
	return nil
}

// end returns the file's size and whether a whole line is there, which is known where the
// size is one that was seen before.
func (s *Spec) end() (size int64, whole bool, err error) {
	var info durable.Info
	if s.named {
		info, err = s.f.Stat()
	} else {
		info, err = s.p.fs.Stat(s.path)
		if err == nil && (info.Ino != s.Info.Ino || info.Dev != s.Info.Dev) {
			err = ErrReplaced
		}
	}
	if err != nil {
		return 0, false, err
	}
	s.named = true
	if info.Size == 0 || info.Size == s.ended {
		return info.Size, true, nil
	}
	var last [1]byte
	if _, err := s.f.ReadAt(last[:], info.Size-1); err != nil {
		return 0, false, err
	}
	return info.Size, last[0] == '\n', nil
}

// Sync makes tags and lines durable.
func (s *Spec) Sync() error {
	if err := s.f.Sync(); err != nil {
		return fmt.Errorf("sync %s: %w", s.Name, err)
	}
	return nil
}

// OpenMessage opens the message file that belongs to the specification.
func (s *Spec) OpenMessage() (durable.File, durable.Info, error) {
	return openMessage(s.p, s.Name)
}

// OpenWhole is OpenMessage for a message that mostly fits into a buffer: then that is all
// of the file, which the size in its first line shows, and it was read and not described.
// It is nil for another one.
func (s *Spec) OpenWhole(buf []byte) (durable.File, durable.Info, []byte, error) {
	f, err := s.p.openRead(Queue + "/" + s.Name)
	if err != nil {
		return nil, durable.Info{}, nil, fmt.Errorf("open message %s: %w", s.Name, err)
	}
	if n, err := f.Read(buf); err == nil && n < len(buf) {
		if had, ok := recorded(buf[:n]); ok && had == int64(n) {
			return f, durable.Info{}, buf[:n], nil
		}
	}
	info, err := f.Stat()
	if err != nil {
		return nil, durable.Info{}, nil, errors.Join(fmt.Errorf("open message %s: %w", s.Name, err), f.Close())
	}
	return f, info, nil, nil
}

// Close gives the descriptors back.
func (s *Spec) Close() error {
	return s.f.Close()
}
