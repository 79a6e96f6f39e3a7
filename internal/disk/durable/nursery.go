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
// that is quicker: on ext4 without a journal (docs/notes/inode-search.md). What is in it
// between two calls is empty, and anybody may remove it at any time.
const Nursery = ".nursery"

// nurserySize is how many files begin in one directory: fewer than the 8,192 inodes of a
// block group, of which others take some too.
const nurserySize = 6000

// topDir has ext4 spread subdirectories over its block groups: EXT4_TOPDIR_FL of
// linux/fs/ext4/ext4.h, chattr +T.
const topDir = 0x00020000

// Nursing is a file system that can make many files quicker, if it is told before it is used
// that there will be many.
type Nursing interface{ Nurse() }

// Nurse implements Nursing.
func (o *OS) Nurse() { o.nursery.wanted = true }

// nursery is a directory in whose block group ext4 finds a free inode at once. A file
// begins there and is renamed to where it belongs before anybody writes to it.
type nursery struct {
	o      *OS
	wanted bool // Nurse was called

	mu   sync.Mutex
	name string // of the directory; "": none
	left int    // files that may begin in it
	over bool   // this cannot be done here
}

// create is openat(2) with O_CREAT and O_EXCL. Where done is false it did nothing, and
// openat itself is to be asked.
func (n *nursery) create(name string, flag int, perm uint32) (fd int, done bool, err error) {
	if !n.wanted || !n.o.storage().searches {
		return -1, false, nil
	}
	for range 2 {
		begun := n.next()
		if begun == "" {
			break
		}
		// Crash: an empty file in the nursery, which nobody looks for.
		fd, err = retryFD(func() (int, error) { return unix.Openat(n.o.root, begun, flag, perm) })
		if errors.Is(err, unix.ENOENT) { // somebody has removed the directory
			n.leave(begun)
			continue
		}
		if err != nil {
			break
		}
		// Crash: the file under one of both names, empty.
		err = retry(func() error { return unix.Renameat2(n.o.root, begun, n.o.root, name, unix.RENAME_NOREPLACE) })
		if err == nil {
			return fd, true, nil
		}
		_ = unix.Unlinkat(n.o.root, begun, 0)
		_ = unix.Close(fd) // it holds nothing
		return -1, errors.Is(err, unix.EEXIST), err
	}
	return -1, false, nil
}

// next is the name under which a file may begin; "": none may.
func (n *nursery) next() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.over {
		return ""
	}
	if n.left == 0 {
		n.renew()
	}
	if n.left == 0 {
		n.over = true
		return ""
	}
	n.left--
	return n.name + "/" + strconv.Itoa(n.left)
}

// leave has no more files begin in the directory of one that could not.
func (n *nursery) leave(begun string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.name) < len(begun) && begun[:len(n.name)] == n.name {
		n.left = 0
	}
}

// MakeNursery makes the nursery, if there is to be one; without it new files begin where
// they belong.
func (o *OS) MakeNursery() {
	if o.storage().searches && unix.Mkdirat(o.root, Nursery, 0o700) == nil {
		o.nursery.spread()
	}
}

// renew has the next files begin in a new directory. The first one tidies up after dead
// processes; one that lives makes itself another.
func (n *nursery) renew() {
	if n.name == "" {
		n.tidy()
	}
	n.remove()
	err := unix.Mkdirat(n.o.root, Nursery, 0o700)
	if err == nil {
		n.spread()
	}
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return
	}
	n.name = Nursery + "/" + strconv.Itoa(os.Getpid()) + "." + strconv.FormatInt(time.Now().UnixNano(), 36)
	if unix.Mkdirat(n.o.root, n.name, 0o700) == nil {
		n.left = nurserySize
	}
}

// tidy removes what others have left, files that are empty and directories. One who is just
// making such a file makes it where it belongs.
func (n *nursery) tidy() {
	dirs, _ := n.o.ReadDir(Nursery) // there is none yet, or it is not ours
	for _, d := range dirs {
		dir := Nursery + "/" + d.Name
		files, _ := n.o.ReadDir(dir)
		for _, f := range files {
			if info, err := n.o.Stat(dir + "/" + f.Name); err == nil && info.Size == 0 {
				_ = unix.Unlinkat(n.o.root, dir+"/"+f.Name, 0)
			}
		}
		_ = unix.Unlinkat(n.o.root, dir, unix.AT_REMOVEDIR)
	}
}

// remove removes the directory, unless a file is just being made in it.
func (n *nursery) remove() {
	if n.name != "" {
		_ = unix.Unlinkat(n.o.root, n.name, unix.AT_REMOVEDIR)
	}
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
