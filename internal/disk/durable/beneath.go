package durable

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Beneath has root follow no symbolic link below the root of the file system, whose owner
// may be a user who replaces a directory by a link to one of root's. For others than root
// it does nothing. Set it before the file system is used.
func (o *tree) Beneath() { o.beneath = os.Geteuid() == 0 }

// place is a name in an open directory.
type place struct {
	dir    int
	base   string
	opened bool // dir is to be closed
}

// oldKernel is set where openat2(2), of Linux 5.6, is missing.
var oldKernel atomic.Bool

// at finds the directory of a name. Without Beneath it is the root of the file system.
func (o *tree) at(name string) (place, error) {
	if !o.beneath {
		return place{dir: o.root, base: name}, nil
	}
	dir := path.Dir(name)
	if dir == "." || oldKernel.Load() {
		return place{dir: o.root, base: name}, nil
	}
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS}
	fd, err := retryFD(func() (int, error) { return unix.Openat2(o.root, dir, &how) })
	switch {
	case err == unix.ENOSYS:
		oldKernel.Store(true)
		return place{dir: o.root, base: name}, nil
	case err != nil:
		return place{}, err
	}
	return place{dir: fd, base: path.Base(name), opened: true}, nil
}

func (p place) close() {
	if p.opened {
		// An O_PATH descriptor has nothing to lose.
		_ = unix.Close(p.dir)
	}
}

// do calls fn with the place of a name.
func (o *tree) do(name string, fn func(p place) error) error {
	p, err := o.at(name)
	if err != nil {
		return err
	}
	defer p.close()
	return retry(func() error { return fn(p) })
}

// doBoth calls fn with the places of two names.
func (o *tree) doBoth(a, b string, fn func(a, b place) error) error {
	p, err := o.at(a)
	if err != nil {
		return err
	}
	defer p.close()
	q, err := o.at(b)
	if err != nil {
		return err
	}
	defer q.close()
	return retry(func() error { return fn(p, q) })
}

// openat is openat(2) at the place of a name.
func (o *tree) openat(name string, flag int, perm uint32) (int, error) {
	p, err := o.at(name)
	if err != nil {
		return -1, err
	}
	defer p.close()
	return unix.Openat(p.dir, p.base, flag, perm)
}

// ErrLinked means that root does not write to a file in a user's directory: it has another
// name, and may be a file of somebody else that the user has linked there.
var ErrLinked = errors.New("it has another name, so it may be another user's file; look where it comes from, and remove this name")

// ownFile returns an error for an open file, one that was there, to which root must not
// write: another user's that the owner of its directory may have linked there, or what is
// no regular file.
func (o *tree) ownFile(fd int, name string) error {
	var dir, own unix.Stat_t
	if err := retry(func() error { return unix.Fstat(fd, &own) }); err != nil {
		return err
	}
	if own.Mode&unix.S_IFMT != unix.S_IFREG {
		return fmt.Errorf("%w: it is no regular file", fs.ErrInvalid)
	}
	if own.Nlink == 1 {
		return nil
	}
	if err := o.do(path.Dir(name), func(p place) error { return unix.Fstatat(p.dir, p.base, &dir, unix.AT_SYMLINK_NOFOLLOW) }); err != nil {
		return err
	}
	if own.Uid != dir.Uid {
		return ErrLinked
	}
	return nil
}

// noFollow returns the flag with which a directory is opened.
func (o *tree) noFollow() int {
	if o.beneath {
		return unix.O_NOFOLLOW
	}
	return 0
}
