package durable

import (
	"errors"
	"os"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Nursery is the directory below a file system's root in which new files begin where
// that is quicker: on ext4 without a journal (docs/notes/inode-search.md). It holds
// empty directories alone, and anybody may remove it at any time.
const Nursery = ".nursery"

// nurserySize is how many files begin in one directory: fewer than the 8,192 inodes of a
// block group, of which others take some too.
const nurserySize = 6000

// topDir has ext4 spread subdirectories over its block groups: EXT4_TOPDIR_FL of
// linux/fs/ext4/ext4.h, chattr +T.
const topDir = 0x00020000

// nursery is a directory in whose block group ext4 finds a free inode at once. A file
// begins there without a name and is linked to its own before anybody can write to it.
type nursery struct {
	o *OS

	mu   sync.Mutex
	fd   int // of the directory; -1: none
	name string
	left int  // files that may begin in it
	over bool // this cannot be done here
}

// create is openat(2) with O_CREAT and O_EXCL. Where done is false it did nothing, and
// openat itself is to be asked.
func (n *nursery) create(name string, flag int, perm uint32) (fd int, done bool, err error) {
	if !n.o.storage().searches {
		return -1, false, nil
	}
	fd, ok := n.unnamed(flag&^(unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW)|unix.O_TMPFILE, perm)
	if !ok {
		return -1, false, nil
	}
	// Crash: an inode without a name, which nobody sees.
	err = retry(func() error {
		return unix.Linkat(unix.AT_FDCWD, "/proc/self/fd/"+strconv.Itoa(fd), n.o.root, name, unix.AT_SYMLINK_FOLLOW)
	})
	if err == nil {
		return fd, true, nil
	}
	_ = unix.Close(fd) // it holds nothing
	return -1, errors.Is(err, unix.EEXIST), err
}

// unnamed opens a new file that has no name yet.
func (n *nursery) unnamed(flag int, perm uint32) (fd int, ok bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for range 2 {
		if n.over || n.left == 0 && !n.renew() {
			return -1, false
		}
		fd, err := retryFD(func() (int, error) { return unix.Openat(n.fd, ".", flag, perm) })
		if err == nil {
			n.left--
			return fd, true
		}
		if !errors.Is(err, unix.ENOENT) {
			n.over = errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EISDIR)
			return -1, false
		}
		n.left = 0 // somebody has removed it, and the file system minds
	}
	return -1, false
}

// renew has the next files begin in a new directory.
func (n *nursery) renew() bool {
	if n.name == "" {
		n.tidy()
	}
	n.leave()
	err := unix.Mkdirat(n.o.root, Nursery, 0o700)
	if err == nil {
		n.spread()
	}
	if err == nil || errors.Is(err, unix.EEXIST) {
		n.name = Nursery + "/" + strconv.Itoa(os.Getpid()) + "." + strconv.FormatInt(time.Now().UnixNano(), 36)
		err = unix.Mkdirat(n.o.root, n.name, 0o700)
	}
	if err == nil {
		n.fd, err = retryFD(func() (int, error) {
			return unix.Openat(n.o.root, n.name, unix.O_DIRECTORY|unix.O_RDONLY|unix.O_CLOEXEC, 0)
		})
	}
	if err != nil {
		n.fd, n.over = -1, true
		return false
	}
	n.left = nurserySize
	return true
}

// spread sets the flag of the nursery; without it the directories lie in one block group.
func (n *nursery) spread() {
	fd, err := unix.Openat(n.o.root, Nursery, unix.O_DIRECTORY|unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	if flags, err := unix.IoctlGetInt(fd, unix.FS_IOC_GETFLAGS); err == nil {
		_ = unix.IoctlSetPointerInt(fd, unix.FS_IOC_SETFLAGS, flags|topDir)
	}
}

// tidy removes what dead processes left. One that lives makes itself another.
func (n *nursery) tidy() {
	left, _ := n.o.ReadDir(Nursery) // there is none yet, or it is not ours
	for _, e := range left {
		_ = unix.Unlinkat(n.o.root, Nursery+"/"+e.Name, unix.AT_REMOVEDIR)
	}
}

// leave gives the directory up.
func (n *nursery) leave() {
	if n.fd < 0 {
		return
	}
	_ = unix.Close(n.fd)
	n.fd = -1
	_ = unix.Unlinkat(n.o.root, n.name, unix.AT_REMOVEDIR) // the next one who tidies does it
}
