package postoffice

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"

	"zmailer/internal/disk/durable"
)

// SuspensionFile holds what operators have suspended (package suspension). Only their tools
// write it; every program may read it. It has a directory of its own, because each change is a
// new file, and the kernel holds confined programs to directories.
const SuspensionFile = Suspended + "/suspensions"

const (
	suspensionNext = SuspensionFile + ".new"
	suspensionLock = Suspended + "/.lock"
)

// EarlierSuspensions is where earlier versions had the file. smtpserver, which is confined, could
// not read it there.
const EarlierSuspensions = "suspensions"

// maxSuspensions is how large the file may be: no list that operators write by hand is.
const maxSuspensions = 1 << 20

// ReadSuspensions returns the file of suspensions, nothing if there is none.
func (p *PostOffice) ReadSuspensions() ([]byte, error) {
	return p.readSuspensions(SuspensionFile)
}

func (p *PostOffice) readSuspensions(name string) ([]byte, error) {
	f, err := p.openRead(name)
	if errors.Is(err, ErrGone) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxSuspensions+1))
	if err == nil && len(b) > maxSuspensions {
		err = fmt.Errorf("it has more than %d bytes", maxSuspensions)
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	return b, nil
}

// PlaceSuspensions makes the directory of the suspensions, and moves the file of an earlier
// version there. A program that follows the suspensions calls it when it starts, before it is
// confined.
func (p *PostOffice) PlaceSuspensions() error {
	if err := p.ensure(Suspended); err != nil {
		return err
	}
	if _, err := p.fs.Stat(EarlierSuspensions); err != nil {
		return nil
	}
	return p.ChangeSuspensions(func(old []byte) ([]byte, error) { return old, nil })
}

// ChangeSuspensions replaces the file of suspensions by what change makes of it. Changes are
// made one after the other. After an error of change the file is as it was. Each change is a
// rename, which the programs that follow the file are told of.
func (p *PostOffice) ChangeSuspensions(change func(old []byte) ([]byte, error)) error {
	if err := p.ensure(Suspended); err != nil {
		return err
	}
	lock, err := durable.OpenLocking(p.fs, suspensionLock, os.O_RDWR)
	if err != nil {
		return fmt.Errorf("lock %s: %w", SuspensionFile, err)
	}
	// Closing gives the lock back; the file stays empty.
	defer lock.Close()
	if err := lock.WaitLock(); err != nil {
		return fmt.Errorf("lock %s: %w", SuspensionFile, err)
	}
	old, err := p.ReadSuspensions()
	_, earlier := p.fs.Stat(EarlierSuspensions)
	if err == nil && earlier == nil && old == nil {
		old, err = p.readSuspensions(EarlierSuspensions)
	}
	if err != nil {
		return err
	}
	content, err := change(old)
	if err != nil || bytes.Equal(old, content) && earlier != nil {
		return err
	}
	if err := p.replaceSuspensions(content); err != nil {
		return fmt.Errorf("write %s: %w", SuspensionFile, err)
	}
	if earlier == nil {
		// Crash: the file of an earlier version is still there and no longer read. Its name may
		// come back after a power loss; the next change removes it.
		if err := p.fs.Remove(EarlierSuspensions); err != nil {
			return fmt.Errorf("remove %s: %w", EarlierSuspensions, err)
		}
	}
	return nil
}

// replaceSuspensions writes the file, which is locked.
func (p *PostOffice) replaceSuspensions(content []byte) error {
	f, err := p.fs.Open(suspensionNext, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	// Crash: a file that no program reads; the next change writes it again.
	if _, err = f.Write(content); err == nil {
		// Crash: the same. Without this the new name could have no content after a power loss,
		// and nothing would be suspended any more.
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		// Crash: the old suspensions are in force, or the new ones.
		err = p.fs.Rename(suspensionNext, SuspensionFile)
	}
	if err != nil {
		return errors.Join(err, p.fs.Remove(suspensionNext))
	}
	// Crash: the new ones, also after a power loss: the operator is told that they are in force.
	return p.fs.SyncDir(Suspended)
}
