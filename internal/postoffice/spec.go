package postoffice

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"zmailer/internal/durable"
)

// Spec is an open work specification, transport/NAME.
type Spec struct {
	Name string // below transport/, with its hash directories
	Info durable.Info
	p    *PostOffice
	f    durable.File
	app  durable.File // opened for append when first needed
}

// OpenSpec opens transport/name. ErrGone: it was finished or moved.
func (p *PostOffice) OpenSpec(name string) (*Spec, error) {
	f, err := p.fs.Open(Transport+"/"+name, os.O_RDWR|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("open specification %s: %w: %w", name, ErrGone, err)
	}
	if err != nil {
		return nil, fmt.Errorf("open specification %s: %w", name, err)
	}
	info, err := f.Stat()
	if err == nil && !info.Mode.IsRegular() {
		err = errors.New("not a regular file")
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open specification %s: %w", name, err), f.Close())
	}
	return &Spec{Name: name, Info: info, p: p, f: f}, nil
}

// Read reads the whole file as it is now.
func (s *Spec) Read() ([]byte, error) {
	// One byte more than the size known, so that a short read tells the end.
	b := make([]byte, s.Info.Size+1)
	n := 0
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

// Lock waits for the specification's flock: agents take it while they look at tags
// and set their locks, so that no two lock one recipient.
func (s *Spec) Lock() error { return s.f.WaitLock() }

// Unlock gives the flock back.
func (s *Spec) Unlock() error { return s.f.Unlock() }

// SetTag writes a tag's bytes (workspec.LockBytes, TagBytes) at an offset, in one
// write(2).
func (s *Spec) SetTag(b []byte, off int64) error {
	// Crash: up to seven bytes of one block, old or new; a power loss may bring the
	// old ones back unless Sync follows.
	if _, err := s.f.WriteAt(b, off); err != nil {
		return fmt.Errorf("mark %s at %d: %w", s.Name, off, err)
	}
	return nil
}

// Append adds whole lines at the end in one write(2), beside other writers. A torn
// line that a crash left there is ended first.
func (s *Spec) Append(lines []byte) error {
	if s.app == nil {
		f, err := s.p.fs.Open(Transport+"/"+s.Name, os.O_WRONLY|os.O_APPEND, 0)
		if err != nil {
			return fmt.Errorf("append to %s: %w", s.Name, err)
		}
		s.app = f
	}
	info, err := s.f.Stat()
	if err != nil {
		return fmt.Errorf("append to %s: %w", s.Name, err)
	}
	if info.Size > 0 {
		var last [1]byte
		if _, err := s.f.ReadAt(last[:], info.Size-1); err != nil {
			return fmt.Errorf("append to %s: %w", s.Name, err)
		}
		if last[0] != '\n' {
			lines = append([]byte{'\n'}, lines...)
		}
	}
	// Crash: all, a part or none of the lines; a torn one has no newline and readers
	// ignore it.
	if _, err := s.app.Write(lines); err != nil {
		return fmt.Errorf("append to %s: %w", s.Name, err)
	}
	return nil
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
	return s.p.OpenMessage(s.Name)
}

// Close gives the descriptors back.
func (s *Spec) Close() error {
	err := s.f.Close()
	if s.app != nil {
		err = errors.Join(err, s.app.Close())
	}
	return err
}

// OpenMessage opens queue/name. ErrGone: there is none.
func (p *PostOffice) OpenMessage(name string) (durable.File, durable.Info, error) {
	f, err := p.openRead(Queue + "/" + name)
	if err != nil {
		return nil, durable.Info{}, fmt.Errorf("open message %s: %w", name, err)
	}
	info, err := f.Stat()
	if err != nil {
		return nil, durable.Info{}, errors.Join(fmt.Errorf("open message %s: %w", name, err), f.Close())
	}
	return f, info, nil
}

// StatMessage describes queue/name. ErrGone: there is none.
func (p *PostOffice) StatMessage(name string) (durable.Info, error) {
	info, err := p.fs.Stat(Queue + "/" + name)
	if errors.Is(err, fs.ErrNotExist) {
		return durable.Info{}, fmt.Errorf("%w: %w", ErrGone, err)
	}
	return info, err
}

// ListTransport calls fn for every specification's name below transport/, hashed
// or not, until fn errs.
func (p *PostOffice) ListTransport(fn func(name string) error) error {
	return p.listHashed(Transport, "", 2, fn)
}

// ListQueue is ListTransport for queue/.
func (p *PostOffice) ListQueue(fn func(name string) error) error {
	return p.listHashed(Queue, "", 2, fn)
}

func (p *PostOffice) listHashed(top, sub string, depth int, fn func(name string) error) error {
	dir := top
	if sub != "" {
		dir = top + "/" + sub
		sub += "/"
	}
	entries, err := p.fs.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("list %s: %w", dir, err)
	}
	for _, e := range entries {
		if depth > 0 && e.Type.IsDir() && isHashDir(e.Name) {
			if err := p.listHashed(top, sub+e.Name, depth-1, fn); err != nil {
				return err
			}
			continue
		}
		if _, ok := ParseName(e.Name); !ok || (e.Type != 0 && e.Type != fs.ModeIrregular) {
			continue
		}
		if err := fn(sub + e.Name); err != nil {
			return err
		}
	}
	return nil
}

// Place is where a specification of that name belongs at the configured depth.
func (p *PostOffice) Place(name string) string {
	n, ok := ParseName(name)
	if !ok {
		return name
	}
	if h := HashDir(n.Ino, p.levels); h != "" {
		return h + "/" + n.String()
	}
	return n.String()
}

// Rehash moves message and specification to their place at the configured depth
// and returns the new name (M21). Only the scheduler calls it, for a message that
// no agent works on.
func (p *PostOffice) Rehash(name string) (string, error) {
	to := p.Place(name)
	if to == name {
		return name, nil
	}
	// Crash: the message is in its new place, the specification in its old one;
	// RecoverQueue looks for the message at every depth and finishes the move.
	if err := p.move(Queue+"/"+name, Queue+"/"+to); err != nil && !errors.Is(err, ErrGone) {
		return name, fmt.Errorf("rehash %s: %w", name, err)
	}
	if err := p.move(Transport+"/"+name, Transport+"/"+to); err != nil {
		return name, fmt.Errorf("rehash %s: %w", name, err)
	}
	return to, nil
}

// Finish removes a message whose recipients are all final and reported.
func (p *PostOffice) Finish(name string) error {
	// The open file keeps the inode number from being given to a new message, whose
	// specification would get the name that is still to be removed.
	f, err := p.openRead(Queue + "/" + name)
	if err != nil && !errors.Is(err, ErrGone) {
		return fmt.Errorf("finish %s: %w", name, err)
	}
	if f != nil {
		// Opened for reading: close has nothing to lose.
		defer func() { _ = f.Close() }()
	}
	// Crash: the specification alone, which says that the message was finishing.
	if err := p.remove(Queue + "/" + name); err != nil {
		return fmt.Errorf("finish %s: %w", name, err)
	}
	// Crash: nothing is left.
	if err := p.remove(Transport + "/" + name); err != nil {
		return fmt.Errorf("finish %s: %w", name, err)
	}
	return nil
}

// Reroute gives a message whose specification is not complete back to the router.
func (p *PostOffice) Reroute(name string) error {
	// Crash: queue/ alone, which goes back to router/ too.
	if err := p.remove(Transport + "/" + name); err != nil {
		return fmt.Errorf("route %s again: %w", name, err)
	}
	return p.requeue(name)
}

func (p *PostOffice) requeue(name string) error {
	n, _ := ParseName(name)
	if err := p.move(Queue+"/"+name, Router+"/"+strconv.FormatUint(n.Ino, 10)); err != nil {
		return fmt.Errorf("route %s again: %w", name, err)
	}
	return nil
}
