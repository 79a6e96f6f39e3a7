package importer

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"zmailer/internal/disk/dotlock"
)

// freshened is how often a lock file that is held gets a new time: an old one counts for
// nothing.
const freshened = time.Minute

// LockFile is a held FILE.lock; nil: none could be made.
type LockFile struct {
	q    *Queue
	name string
	info fs.FileInfo
	f    *os.File // the file that we made, whatever has its name
	stop chan struct{}
	ends sync.WaitGroup
}

// LockFile makes name.lock, with our pid and a host's name in it, as programs do that
// deliver to a mailbox. Where no file can be made the other locks have to do. ErrRunning:
// somebody else has it.
func (q *Queue) LockFile(name, host string) (*LockFile, error) {
	l := &LockFile{q: q, name: name + ".lock", stop: make(chan struct{})}
	err := l.create(host)
	if errors.Is(err, fs.ErrExist) && l.removeStale(host) {
		err = l.create(host)
	}
	switch {
	case errors.Is(err, fs.ErrExist):
		return nil, fmt.Errorf("%s is there: somebody has it locked; try again: %w", l.name, ErrRunning)
	case errors.Is(err, fs.ErrPermission), errors.Is(err, unix.EROFS), errors.Is(err, unix.ENAMETOOLONG):
		return nil, nil
	case err != nil:
		return nil, err
	}
	l.ends.Go(l.freshen)
	return l, nil
}

func (l *LockFile) create(host string) error {
	// Crash: an empty lock file, which counts as another program's, or a lock whose writer is
	// dead: the next one removes it.
	f, err := l.q.root.OpenFile(l.name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(dotlock.Text(host))
	if err == nil {
		l.info, err = f.Stat()
	}
	if err != nil {
		return errors.Join(err, f.Close(), l.q.Remove(l.name))
	}
	l.f = f
	return nil
}

// removeStale removes a lock file whose writer is gone. Of two that do so at once one could
// take away what the other has just made: both lock the stale file itself, and look whether
// it still has the name.
func (l *LockFile) removeStale(host string) bool {
	f, info, err := l.q.Open(l.name, false)
	if err != nil {
		return errors.Is(err, fs.ErrNotExist)
	}
	// Opened for reading: close has nothing to lose.
	defer func() { _ = f.Close() }()
	text, _ := io.ReadAll(io.LimitReader(f, dotlock.Longest)) // a file that cannot be read counts as empty
	if !dotlock.Stale(text, info.ModTime(), time.Now(), host) || unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
		return false
	}
	if named, err := l.q.root.Lstat(l.name); err != nil || !os.SameFile(named, info) {
		return errors.Is(err, fs.ErrNotExist)
	}
	// Crash: the stale lock, or none.
	return l.q.Remove(l.name) == nil
}

// freshen keeps others from taking a long import's lock for stale.
func (l *LockFile) freshen() {
	t := time.NewTicker(freshened)
	defer t.Stop()
	for {
		select {
		case <-l.stop:
			return
		case now := <-t.C:
			// An error is reported when the lock is released.
			_ = l.touch(now)
		}
	}
}

// touch gives the file that we made a new time, and not one that somebody has put in its
// place since.
func (l *LockFile) touch(now time.Time) error {
	at := unix.NsecToTimeval(now.UnixNano())
	return unix.Futimes(int(l.f.Fd()), []unix.Timeval{at, at})
}

// Release removes the lock file, if it still is ours.
func (l *LockFile) Release() error {
	if l == nil {
		return nil
	}
	close(l.stop)
	l.ends.Wait()
	return errors.Join(l.remove(), l.f.Close())
}

func (l *LockFile) remove() error {
	named, err := l.q.root.Lstat(l.name)
	if errors.Is(err, fs.ErrNotExist) || err == nil && !os.SameFile(named, l.info) {
		return nil
	}
	if err != nil {
		return err
	}
	// Crash: the lock of a dead writer, or none.
	return l.q.Remove(l.name)
}
