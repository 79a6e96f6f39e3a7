package postoffice

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"zmailer/internal/disk/durable"
)

// A specification whose history has become long is replaced by a copy with a shorter one.
// The copy is written under a name of its own beside it, and the two are exchanged in one
// step: what has the specification's name is at every moment a whole file that says
// everything, and what had it before still has a name until it is known to be what was
// copied. See docs/notes/history.md.

// copyPrefix begins the name of such a copy. No program takes it for a specification.
const copyPrefix = ".copy."

// ErrEdited is returned by Replace when somebody else has changed the file, or has put
// another one in its place, meanwhile. Their file has the name.
var ErrEdited = errors.New("it was edited at this moment")

func copyOf(spec string) string { return path.Join(path.Dir(spec), copyPrefix+path.Base(spec)) }

// Replace puts a file with the content b in the place of the specification, of which was is
// all of what it holds. The caller has its flock, no recipient is locked, and no agent has
// been given the message. note is a line that is appended to the old file first: a process
// that has it open, and waits for the flock, finds the line there and then by Replaced that
// the file has lost its name. After that the old file is closed.
//
// durable.ErrNoExchange: the file system cannot do it; the file is as it was, but for note.
func (s *Spec) Replace(b, was, note []byte) (err error) {
	fail := func(err error) error { return fmt.Errorf("replace %s: %w", s.Name, err) }
	// Crash: the file with a line that says that it may have been replaced, and was not.
	if err := s.Append(note); err != nil {
		return fail(err)
	}
	// Crash: as before. SweepCopy recognises a copy by that line.
	if err := s.Sync(); err != nil {
		return fail(err)
	}
	was = was[:len(was):len(was)]
	if n := len(was); n > 0 && was[n-1] != '\n' {
		was = append(was, tornEnd...)
	}
	was = append(was, note...)
	name := copyOf(s.path)
	if err := s.p.remove(name); err != nil {
		return fail(err)
	}
	// Crash: also a part of the copy, which SweepCopies removes.
	f, err := s.p.fs.Open(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, s.Info.Mode.Perm())
	if err != nil {
		return fail(err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	swapped := false
	defer func() {
		if err != nil && !swapped {
			// Crash: as before.
			err = errors.Join(err, s.p.remove(name))
		}
	}()
	info, err := f.Stat()
	if err == nil {
		// Who opens the new file waits until all is done.
		err = f.WaitLock()
	}
	if err == nil {
		err = f.Chmod(s.Info.Mode.Perm())
	}
	if err == nil {
		_, err = f.Write(b)
	}
	if err == nil {
		// Crash: as before; the copy is whole before it gets the name.
		err = f.Sync()
	}
	if err != nil {
		return fail(err)
	}
	// Crash: the old file or the copy has the name, the other one is beside it; both say
	// the same, and nothing is written to the copy before it is sure to keep the name.
	if err := s.p.fs.Exchange(name, s.path); err != nil {
		return fail(err)
	}
	swapped = true
	err = s.isStill(name, was)
	if err == nil {
		// Crash: the copy has the name for good; the old file goes when the scheduler starts.
		err = s.p.syncDir(dirOf(s.path))
	}
	if err != nil {
		return fail(errors.Join(err, s.putBack(name, info, f, note)))
	}
	// Crash: the old file is still there or not; nothing reads it.
	if err := s.p.remove(name); err != nil {
		return fail(err)
	}
	return nil
}

// isStill reports by ErrEdited that what has a name now is not the specification as it was
// read.
func (s *Spec) isStill(name string, was []byte) error {
	info, err := s.p.fs.Stat(name)
	if err != nil {
		return err
	}
	if info.Ino != s.Info.Ino || info.Dev != s.Info.Dev || info.Size != int64(len(was)) {
		return ErrEdited
	}
	now, err := s.Read()
	if err != nil {
		return err
	}
	if !bytes.Equal(now, was) {
		return ErrEdited
	}
	return nil
}

// putBack gives the name back to the file that had it.
func (s *Spec) putBack(name string, copied durable.Info, f durable.File, note []byte) error {
	// An agent may wait for the flock of the copy.
	if _, err := f.Append(note); err != nil {
		return err
	}
	// Crash: as at the first exchange. What has the name of a copy and is none is put into
	// quarantine/ (SweepCopies).
	if err := s.p.fs.Exchange(name, s.path); err != nil {
		return err
	}
	info, err := s.p.fs.Stat(name)
	if err != nil {
		return err
	}
	if info.Ino != copied.Ino || info.Dev != copied.Dev {
		// Edited a second time at this moment.
		_, err := s.p.quarantine(name, "edited")
		return err
	}
	if err := s.p.syncDir(dirOf(s.path)); err != nil {
		return err
	}
	// Crash: a copy that nothing reads, which is swept.
	return s.p.remove(name)
}

// ParseCopy returns the name, below transport/, of the specification that a file there is a
// copy of, or was before it was replaced. ok is false for the names of other files.
func ParseCopy(name string) (of string, ok bool) {
	return aboutSpec(copyPrefix, name)
}

// aboutSpec reads a name of a prefix and the name of a specification beside it.
func aboutSpec(prefix, name string) (spec string, ok bool) {
	base, ok := strings.CutPrefix(path.Base(name), prefix)
	if !ok {
		return "", false
	}
	_, ok = ParseName(base)
	return path.Join(path.Dir(name), base), ok
}

// SweepCopy removes what a dead process has left beside transport/name when it replaced
// that: the copy, whole or not, or the old file. ours reports by its content, and that of
// the specification, whether it is one of these; if not, an operator has put it there at
// that moment, and it goes to quarantine/. SweepCopy leaves alone what a process has locked,
// and returns nil then.
func (p *DeliveryQueue) SweepReplaced(name string, ours func(left, spec []byte) bool) (*Recovered, error) {
	left := copyOf(Transport + "/" + name)
	f, err := p.fs.Open(left, os.O_RDWR|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, gone(err)
	}
	// Closing gives the flock back.
	defer func() { _ = f.Close() }()
	if free, err := f.TryLock(); err != nil || !free {
		return nil, err
	}
	b, err := io.ReadAll(f)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", left, err)
	}
	spec, err := p.readAll(Transport + "/" + name)
	done := errors.Is(err, ErrGone) // the message needs neither
	if err != nil && !done {
		return nil, err
	}
	if done || ours(b, spec) {
		// Whoever replaced it may have died before this.
		if err := p.syncDir(dirOf(left)); err != nil {
			return nil, err
		}
		// Crash: it is still there or not; nothing reads it.
		if err := p.remove(left); err != nil {
			return nil, err
		}
		return &Recovered{Action: Swept, Name: left, Detail: "its specification was being replaced by a copy"}, nil
	}
	return p.putAside(left, "edited", "an operator put it in the place of "+Transport+"/"+name+" while that was being replaced")
}
