package durable

import (
	"errors"
	"io/fs"
	"os"
	"path"

	"golang.org/x/sys/unix"
)

// Inherit has root make files and directories for the owner of the directory that they
// are made in: so what an administrator does in a user's postoffice leaves nothing
// that the user's daemons cannot open. For others than root it does nothing. Set it
// before the file system is used.
func (o *tree) Inherit() { o.inherit = os.Geteuid() == 0 }

// openInherited is openat, with a file that it makes given away. One that is there
// keeps its owner; see openForeign.
func (o *tree) openInherited(name string, flag int, perm uint32) (int, error) {
	const tries = 10
	for range tries {
		fd, err := o.openat(name, flag|unix.O_EXCL, perm)
		if err == nil {
			// Crash: an empty file of root's, which the next one who opens it keeps.
			return fd, o.giveAway(fd, name)
		}
		if err != unix.EEXIST || flag&unix.O_EXCL != 0 {
			return fd, err
		}
		if fd, err = o.openForeign(name, flag&^unix.O_CREAT); err != unix.ENOENT {
			return fd, err
		}
	}
	return -1, unix.EAGAIN
}

// openForeign opens a file that is there, as root in what may be another user's directory:
// a fifo does not keep it waiting, and nothing is changed before it is known whose file it is.
func (o *tree) openForeign(name string, flag int) (int, error) {
	fd, err := o.openat(name, flag&^unix.O_TRUNC|unix.O_NONBLOCK, 0)
	if err != nil || flag&unix.O_ACCMODE == unix.O_RDONLY {
		return fd, err
	}
	err = o.ownFile(fd, name)
	if err == nil && flag&unix.O_TRUNC != 0 {
		err = unix.Ftruncate(fd, 0)
	}
	if err != nil {
		return -1, errors.Join(err, unix.Close(fd))
	}
	return fd, nil
}

// giveAway gives a file that was just made to its directory's owner.
func (o *tree) giveAway(fd int, name string) error {
	var dir, own unix.Stat_t
	err := o.do(path.Dir(name), func(p place) error { return unix.Fstatat(p.dir, p.base, &dir, unix.AT_SYMLINK_NOFOLLOW) })
	if err == nil {
		err = retry(func() error { return unix.Fstat(fd, &own) })
	}
	if err == nil && (own.Uid != dir.Uid || own.Gid != dir.Gid) {
		err = retry(func() error { return unix.Fchown(fd, int(dir.Uid), int(dir.Gid)) })
	}
	if err != nil {
		return errors.Join(err, unix.Close(fd))
	}
	return nil
}

// giveAwayDir gives a directory that was just made to its parent's owner.
func (o *tree) giveAwayDir(name string, mode uint32) error {
	fd, err := retryFD(func() (int, error) {
		return o.openat(name, unix.O_DIRECTORY|unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	})
	if err == nil {
		if err = o.giveAway(fd, name); err == nil {
			// A change of owner may take bits.
			err = errors.Join(retry(func() error { return unix.Fchmod(fd, mode) }), unix.Close(fd))
		}
	}
	if err != nil {
		return &fs.PathError{Op: "chown", Path: path.Join(o.dir, name), Err: err}
	}
	return nil
}
