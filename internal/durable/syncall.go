package durable

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

var _ Sharer = (*OS)(nil)

// SharesSync implements Sharer: on ext4 with a journal and on xfs, whose logs keep all
// changes in one order, and where the kernel writes a range out for good (Linux 5.2).
func (o *OS) SharesSync() bool { return o.storage().journalled }

// writeOut is a range's data on their way to the disk, waited for. Errors of before are told.
const writeOut = unix.SYNC_FILE_RANGE_WAIT_BEFORE | unix.SYNC_FILE_RANGE_WRITE | unix.SYNC_FILE_RANGE_WAIT_AFTER

// SyncAll implements Sharer: the data of each file are written out, then the journal is
// committed once. What is committed is the transaction of the last file's last change,
// so that is changed again behind the others' data: their blocks, sizes, modes and names
// stand before it in the journal. Its fsync flushes the drive's cache, for all of them.
func (o *OS) SyncAll(files []File) error {
	own := make([]*osFile, 0, len(files))
	for _, f := range files {
		if f, ok := f.(*osFile); ok {
			own = append(own, f)
		}
	}
	if len(own) != len(files) || len(own) == 0 || !o.SharesSync() {
		return syncEach(files)
	}
	for _, f := range own {
		// Only begun; what is wrong with it is told below.
		_ = unix.SyncFileRange(f.fd, 0, 0, unix.SYNC_FILE_RANGE_WRITE)
	}
	for _, f := range own {
		// Crash: data of files whose names and modes may be lost; nobody was told yet.
		err := retry(func() error { return unix.SyncFileRange(f.fd, 0, 0, writeOut) })
		if errors.Is(err, unix.ENOSYS) {
			return syncEach(files)
		}
		if err != nil {
			return f.wrap("sync_file_range", err)
		}
	}
	last := own[len(own)-1]
	if err := last.touch(); err != nil {
		return syncEach(files)
	}
	return last.Sync()
}

// touch changes the file's inode, to the mode that it has.
func (f *osFile) touch() error {
	var st unix.Stat_t
	err := retry(func() error { return unix.Fstat(f.fd, &st) })
	if err == nil {
		err = retry(func() error { return unix.Fchmod(f.fd, st.Mode&0o7777) })
	}
	return err
}

// syncEach syncs files at once and alone.
func syncEach(files []File) error {
	errs := make([]error, len(files))
	var all sync.WaitGroup
	for i, f := range files {
		all.Go(func() { errs[i] = f.Sync() })
	}
	all.Wait()
	return errors.Join(errs...)
}

// storage is what a file system does by itself.
type storage struct {
	journalled bool // changes have one order; see SharesSync
	searches   bool // a new file is searched an inode for; see nursery
}

// storageOf looks at the file system with a directory.
func storageOf(fd int) storage {
	var st unix.Stat_t
	if err := retry(func() error { return unix.Fstat(fd, &st) }); err != nil {
		return storage{}
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return storage{}
	}
	kind, source := mountOf(mounts, unix.Major(st.Dev), unix.Minor(st.Dev))
	s := storage{}
	switch kind {
	case "xfs":
		s.journalled = true
	case "ext3", "ext4":
		// jbd2 shows the journals in use, as vda1-8; a file system without one is not there.
		dev, err := filepath.EvalSymlinks(source)
		if err != nil {
			dev = source
		}
		found, err := filepath.Glob("/proc/fs/jbd2/" + strings.ReplaceAll(strings.TrimPrefix(dev, "/dev/"), "/", "!") + "-*")
		s.journalled = err == nil && len(found) > 0
		s.searches = err == nil && !s.journalled
	}
	s.journalled = s.journalled && kernelFrom(5, 2)
	return s
}

// mountOf finds the type and the device of a file system by its number, proc(5).
func mountOf(mountinfo []byte, major, minor uint32) (kind, source string) {
	number := fmt.Sprintf("%d:%d", major, minor)
	lines := bufio.NewScanner(bytes.NewReader(mountinfo))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		left, right, ok := strings.Cut(lines.Text(), " - ")
		f, g := strings.Fields(left), strings.Fields(right)
		if ok && len(f) > 2 && len(g) > 1 && f[2] == number {
			return g[0], g[1]
		}
	}
	return "", ""
}

// kernelFrom tells whether the kernel is of this version or later.
func kernelFrom(major, minor int) bool {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return false
	}
	return versionFrom(unix.ByteSliceToString(u.Release[:]), major, minor)
}

func versionFrom(release string, major, minor int) bool {
	first, rest, _ := strings.Cut(release, ".")
	second, _, _ := strings.Cut(rest, ".")
	second = second[:len(second)-len(strings.TrimLeft(second, "0123456789"))]
	a, err1 := strconv.Atoi(first)
	b, err2 := strconv.Atoi(second)
	return err1 == nil && err2 == nil && (a > major || a == major && b >= minor)
}
