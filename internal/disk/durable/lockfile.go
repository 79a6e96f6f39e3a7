package durable

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// LockMode is the mode of a lock file. Whoever can open a file can take a flock on it,
// also one that opens it for reading alone: so no one but its owner and root may.
const LockMode fs.FileMode = 0o600

// ErrUntrusted means that a name leads to something that cannot serve as a lock file.
var ErrUntrusted = errors.New("not a lock file of this user")

// UntrustedError is an ErrUntrusted with the reason.
type UntrustedError struct {
	Path string
	UID  uint32 // owner
	What string // "a symbolic link", "a regular file"
	Err  error  // the system's; nil: none
}

func (e *UntrustedError) Error() string {
	return fmt.Sprintf("lock %s: uid %d owns it and it is %s; a lock file must be a regular file of uid %d: find out who made it, then remove it",
		e.Path, e.UID, e.What, os.Geteuid())
}

func (e *UntrustedError) Unwrap() []error {
	if e.Err == nil {
		return []error{ErrUntrusted}
	}
	return []error{ErrUntrusted, e.Err}
}

// Lock implements FS.
func (o *OS) Lock(name string, content []byte) (Lock, error) {
	return o.lock(name, content, func(f *osFile) error {
		ok, err := f.TryLock()
		if err == nil && !ok {
			err = &fs.PathError{Op: "lock", Path: path.Join(o.dir, name), Err: ErrLocked}
			if holder, ok := foreignHolder(f); ok {
				err = fmt.Errorf("%w%s", err, holder)
			}
		}
		return err
	})
}

// WaitLock is Lock, but waits for the holder.
func (o *OS) WaitLock(name string, content []byte) (Lock, error) {
	return o.lock(name, content, (*osFile).WaitLock)
}

func (o *OS) lock(name string, content []byte, take func(*osFile) error) (Lock, error) {
	for {
		f, made, err := o.openLock(name)
		if err != nil {
			return nil, err
		}
		if err := take(f); err != nil {
			return nil, errors.Join(err, f.Close())
		}
		// The holder may have unlinked the file between our open and our flock: a lock
		// counts only on the file that the name leads to now.
		mine, err := f.Stat()
		if err != nil {
			return nil, errors.Join(err, f.Close())
		}
		named, err := o.Stat(name)
		if errors.Is(err, fs.ErrNotExist) || err == nil && named.Ino != mine.Ino {
			// Nothing was written: close has nothing to lose but the lock.
			_ = f.Close()
			continue
		}
		if err != nil {
			return nil, errors.Join(err, f.Close())
		}
		if mine.Nlink > 1 && !made {
			// Any user may have linked the file to a name of their own. The flock shows that
			// no process holds it; whoever waits for it finds the name gone and tries again.
			// Crash: no lock file, as after Release.
			if err := errors.Join(o.Remove(name), f.Close()); err != nil {
				return nil, err
			}
			continue
		}
		l := &osLock{fs: o, name: name, f: f}
		if err := l.write(content); err != nil {
			// Crash: a lock file that no process holds and no claim names. Ours goes away again,
			// so that each try does not leave one.
			return nil, errors.Join(o.pathError("write", name, err), l.Release())
		}
		return l, nil
	}
}

// openLock opens a lock file, or makes it; made reports which.
func (o *OS) openLock(name string) (f *osFile, made bool, err error) {
	const flag = unix.O_RDWR | unix.O_CLOEXEC | unix.O_NOFOLLOW | unix.O_NONBLOCK
	const tries = 100
	for range tries {
		fd, err := retryFD(func() (int, error) { return o.openat(name, flag, 0) })
		made = errors.Is(err, unix.ENOENT)
		if made {
			fd, err = retryFD(func() (int, error) {
				// Crash: an empty lock file, which is free.
				return o.openCreating(name, flag|unix.O_CREAT|unix.O_EXCL, uint32(LockMode))
			})
			if errors.Is(err, unix.EEXIST) {
				continue // another process has just made it
			}
		}
		f = &osFile{fd: fd, flag: flag, dir: o.dir, name: name}
		if err != nil {
			return nil, made, o.noLockFile(name, err)
		}
		if err := trustLock(f, true); err != nil {
			return nil, made, errors.Join(err, f.Close())
		}
		return f, made, nil
	}
	return nil, false, o.pathError("lock", name, unix.EAGAIN)
}

// openCreating is openat, with a file that root makes given away where that is wanted.
func (o *tree) openCreating(name string, flag int, perm uint32) (int, error) {
	if o.inherit {
		return o.openInherited(name, flag, perm)
	}
	return o.openat(name, flag, perm)
}

// noLockFile is why a lock file could not be opened: where the name leads to something
// that is not ours, that is the reason.
func (o *OS) noLockFile(name string, err error) error {
	info, serr := o.Stat(name)
	if serr == nil && (!info.Mode.IsRegular() || !mayOwn(info)) {
		return &UntrustedError{Path: path.Join(o.dir, name), UID: info.UID, What: kind(info.Mode), Err: err}
	}
	return o.pathError("open", name, err)
}

// mayOwn reports whether a file belongs to this process's user. Root works in the
// postoffices of other users, whose files those are.
func mayOwn(info Info) bool {
	uid := uint32(os.Geteuid())
	return info.UID == uid || uid == 0
}

// trustLock checks an open lock file, and closes one of ours to other users. One with
// another name is left as it is if it is replaced: to root it may be anybody's.
func trustLock(f File, replaced bool) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if !info.Mode.IsRegular() || !mayOwn(info) {
		return &UntrustedError{Path: nameOf(f), UID: info.UID, What: kind(info.Mode)}
	}
	if info.Mode.Perm()&^LockMode != 0 && (info.Nlink == 1 || !replaced) {
		return f.Chmod(LockMode)
	}
	return nil
}

// OpenLocking opens a file that also holds something to read, and that processes lock,
// making it if need be: LockMode is its mode from then on.
func OpenLocking(f FS, name string, flag int) (File, error) {
	// Crash: an empty file, which its readers know.
	file, err := f.Open(name, flag|os.O_CREATE|unix.O_NONBLOCK, LockMode)
	if err != nil {
		return nil, err
	}
	if err := trustLock(file, false); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

func nameOf(f File) string {
	if f, ok := f.(*osFile); ok {
		return path.Join(f.dir, f.name)
	}
	return "file"
}

func kind(m fs.FileMode) string {
	switch m.Type() {
	case 0:
		return "a regular file"
	case fs.ModeDir:
		return "a directory"
	case fs.ModeSymlink:
		return "a symbolic link"
	case fs.ModeNamedPipe:
		return "a fifo"
	case fs.ModeSocket:
		return "a socket"
	}
	return "a special file"
}

// foreignHolder describes the process of another user that has a flock on an open file,
// as /proc/locks (proc(5)) has it: "1: FLOCK ADVISORY WRITE 708 08:01:1234 0 EOF". It
// opened the file before that was closed to others, and has to be ended by hand.
func foreignHolder(f File) (text string, ok bool) {
	info, err := f.Stat()
	if err != nil {
		return "", false
	}
	end := ":" + strconv.FormatUint(info.Ino, 10)
	for line := range strings.Lines(string(KernelLocks())) {
		w := strings.Fields(line)
		if len(w) < 6 || w[1] != "FLOCK" || !strings.HasSuffix(w[5], end) {
			continue
		}
		var st unix.Stat_t
		if err := unix.Stat("/proc/"+w[4], &st); err == nil && st.Uid != uint32(os.Geteuid()) {
			return fmt.Sprintf(" (held by pid %s of uid %d)", w[4], st.Uid), true
		}
	}
	return "", false
}

// KernelLocks returns the lines of /proc/locks; none if it cannot be read. The kernel gives
// them in pieces of a page at most and counts lines to find where the next piece begins: when a
// lock is released between two pieces, the first lines of the second one are left out, which are
// of locks that are held all the time. So a list of more than one piece is read several times,
// with the pieces beginning at other lines; what is held is then in one of them at least, and
// lines may be there more than once.
func KernelLocks() []byte {
	const times, page = 5, 4096
	all, pieces := lockPieces(page)
	for n := 1; pieces > 1 && n < times; n++ {
		again, _ := lockPieces(page * n / times)
		all = append(all, again...)
	}
	return all
}

// lockPieces reads the list once; first is how long the first piece may be.
func lockPieces(first int) (all []byte, pieces int) {
	f, err := os.Open("/proc/locks")
	if err != nil {
		return nil, 0
	}
	defer f.Close()
	piece := make([]byte, 64<<10)
	for n, err := f.Read(piece[:first]); err == nil; n, err = f.Read(piece) {
		all = append(all, piece[:n]...)
		pieces++
	}
	return all, pieces
}

type osLock struct {
	fs   *OS
	name string
	f    *osFile
}

// write makes the file say who holds it and makes its name durable. What it says is
// for people: on a full disk it says nothing, so that those who make room there can
// still start.
func (l *osLock) write(content []byte) error {
	empty := func() error { return retry(func() error { return unix.Ftruncate(l.f.fd, 0) }) }
	if err := empty(); err != nil {
		return err
	}
	_, err := l.f.WriteAt(content, 0)
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		err = empty()
	}
	if err != nil {
		return err
	}
	// Crash: from here the name outlives a power loss, so a claim that names this lock
	// finds it free, not missing.
	return l.f.Sync()
}

// Release unlinks before it unlocks, so no one locks a name that then goes away.
func (l *osLock) Release() error {
	err := l.fs.Remove(l.name)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return errors.Join(err, l.f.Close())
}

// Abandon implements Lock.
func (l *osLock) Abandon() error { return l.f.Close() }
