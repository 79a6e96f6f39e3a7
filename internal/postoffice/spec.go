package postoffice

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"zmailer/internal/disk/durable"
)

// Spec is an open work specification, transport/NAME.
type Spec struct {
	Name string // below transport/, with its hash directories
	Info durable.Info
	p    *PostOffice
	path string
	f    durable.File

	begun bool  // it was read
	named bool  // the name was looked at since: it was ours
	ended int64 // a size at which the file has ended with a whole line; 0: not known
}

// OpenSpec opens transport/name. ErrGone: it was finished or moved.
func (p *PostOffice) OpenSpec(name string) (*Spec, error) {
	return p.openSpecAt(Transport+"/"+name, name)
}

func (p *PostOffice) openSpecAt(path, name string) (s *Spec, err error) {
	for range opens {
		if s, err = p.openSpecOnce(path, name); !errors.Is(err, ErrGone) || errors.Is(err, fs.ErrNotExist) {
			break
		}
		// It had lost its name when it was open: a summary may have taken its place.
	}
	return s, err
}

// opens is how often a specification is opened that has no name any more when it is.
const opens = 3

func (p *PostOffice) openSpecOnce(path, name string) (*Spec, error) {
	f, err := p.fs.Open(path, os.O_RDWR|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("open specification %s: %w: %w", name, ErrGone, err)
	}
	if err != nil {
		return nil, fmt.Errorf("open specification %s: %w", name, err)
	}
	info, err := f.Stat()
	if err == nil {
		err = p.believe(path, info)
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
	// One byte more than the size known, so that a short read tells the end.
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

// Lock waits for the specification's flock: agents take it while they look at tags
// and set their locks, so that no two lock one recipient.
func (s *Spec) Lock() error { return s.f.WaitLock() }

// Replaced tells whether the name belongs to another file by now: somebody has put
// one in its place, as an editor does. ErrGone: no file has the name.
func (s *Spec) Replaced() (bool, error) {
	info, err := s.p.fs.Stat(s.path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, fmt.Errorf("look at %s: %w: %w", s.Name, ErrGone, err)
	}
	if err != nil {
		return false, fmt.Errorf("look at %s: %w", s.Name, err)
	}
	return info.Ino != s.Info.Ino || info.Dev != s.Info.Dev, nil
}

// Unlock gives the flock back.
func (s *Spec) Unlock() error { return s.f.Unlock() }

// SetTag writes a tag's bytes (workspec.LockBytes, TagBytes) at an offset, in one
// write(2). Of recipients that stand side by side it may be all tags at once, with what
// stands between them as it is.
func (s *Spec) SetTag(b []byte, off int64) error {
	// Crash: up to seven bytes of one block, old or new, or of many tags the first ones; a
	// power loss may bring the old ones back unless Sync follows.
	if _, err := s.f.WriteAt(b, off); err != nil {
		return fmt.Errorf("mark %s at %d: %w", s.Name, off, err)
	}
	return nil
}

// ReadAt reads a part of the file as it is now.
func (s *Spec) ReadAt(b []byte, off int64) error {
	if _, err := s.f.ReadAt(b, off); err != nil {
		return fmt.Errorf("read %s at %d: %w", s.Name, off, err)
	}
	return nil
}

// tornEnd ends a line that a crash or a full disk has torn. What is left of it may look
// like a whole line that says something else; behind CAN nobody believes it (workspec).
const tornEnd = "\x18\n"

// Append adds whole lines at the end in one write(2), beside other writers. A torn
// line that a crash left there is ended first, so that nobody reads it. ErrReplaced:
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

// end is the file's size and whether a whole line stands there, which is known where the
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
	return s.p.OpenMessage(s.Name)
}

// Close gives the descriptors back.
func (s *Spec) Close() error {
	return s.f.Close()
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

// OpenWhole is OpenMessage for a message that mostly fits into a buffer: then that is all
// of the file, which the size in its first line tells, and it was read and not described.
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
	return p.listHashed(Transport, "", 2, fn, nil)
}

// HashDirs calls fn for every hash directory in a directory below transport/, "" for
// itself.
func (p *PostOffice) HashDirs(sub string, fn func(name string)) error {
	return durable.ReadDirFunc(p.fs, path.Join(Transport, sub), func(part []durable.Entry) error {
		for _, e := range part {
			if e.Type.IsDir() && isHashDir(e.Name) {
				fn(e.Name)
			}
		}
		return nil
	})
}

// ListQueue is ListTransport for queue/.
func (p *PostOffice) ListQueue(fn func(name string) error) error {
	return p.listHashed(Queue, "", 2, fn, nil)
}

func (p *PostOffice) listHashed(top, sub string, depth int, fn, note func(name string) error) error {
	dir := top
	if sub != "" {
		dir = top + "/" + sub
		sub += "/"
	}
	var ferr error // fn's, which says by itself what it is about
	err := durable.ReadDirFunc(p.fs, dir, func(part []durable.Entry) error {
		for _, e := range part {
			if ferr = p.listEntry(top, sub, e, depth, fn, note); ferr != nil {
				return ferr
			}
		}
		return nil
	})
	switch {
	case ferr != nil:
		return ferr
	case errors.Is(err, fs.ErrNotExist) && sub != "":
		return nil // a hash directory that was removed meanwhile
	case err != nil:
		return fmt.Errorf("list %s: %w", dir, err)
	}
	return nil
}

func (p *PostOffice) listEntry(top, sub string, e durable.Entry, depth int, fn, note func(name string) error) error {
	switch {
	case depth > 0 && e.Type.IsDir() && isHashDir(e.Name):
		return p.listHashed(top, sub+e.Name, depth-1, fn, note)
	case e.Type != 0 && e.Type != fs.ModeIrregular:
		return nil
	case note != nil && (strings.HasPrefix(e.Name, notePrefix) || strings.HasPrefix(e.Name, copyPrefix)):
		return note(sub + e.Name)
	}
	if _, ok := ParseName(e.Name); !ok {
		return nil
	}
	return fn(sub + e.Name)
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
	// A copy that somebody has put there must not part the message from its specification.
	if taken, err := p.exists(Transport + "/" + to); err != nil || taken {
		return name, fmt.Errorf("rehash %s: %s: %w", name, to, cmp.Or(err, ErrOccupied))
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

// Reunite looks for the message of a specification that stands alone, at every hash
// depth, and moves the specification to it. It gives the new name. ErrGone: there is no
// such message. ErrOccupied: the message has another specification beside it.
func (p *PostOffice) Reunite(name string) (string, error) {
	n, _ := ParseName(name)
	rel, err := p.findQueued(n)
	if err != nil {
		return "", err
	}
	if rel == "" || rel == name {
		return "", fmt.Errorf("find the message of %s: %w", name, ErrGone)
	}
	// Crash: see Rehash.
	if err := p.move(Transport+"/"+name, Transport+"/"+rel); err != nil {
		return "", fmt.Errorf("move %s to its message: %w", name, err)
	}
	return rel, nil
}

// Finish removes a message whose recipients are all final and reported.
func (p *PostOffice) Finish(name string) error { return p.finish(name, false) }

// FinishOld is Finish for a message of which something was delivered long ago: where
// names keep no order, a loss of power could leave it without its specification, to be
// routed again to all its recipients.
func (p *PostOffice) FinishOld(name string) error { return p.finish(name, true) }

func (p *PostOffice) finish(name string, inOrder bool) error {
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
	if inOrder {
		// Crash: as before, and the specification cannot go first.
		if err := p.syncDir(dirOf(Queue + "/" + name)); err != nil {
			return fmt.Errorf("finish %s: %w", name, err)
		}
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
	if _, err := p.moveIn(Queue+"/"+name, p.RouterDir(), n.Ino, ""); err != nil {
		return fmt.Errorf("route %s again: %w", name, err)
	}
	return nil
}
