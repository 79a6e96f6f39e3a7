package durable

import (
	"errors"
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

// writeOut writes a range to the disk and waits for it. It also returns an error of a
// write-back before it.
const writeOut = unix.SYNC_FILE_RANGE_WAIT_BEFORE | unix.SYNC_FILE_RANGE_WRITE | unix.SYNC_FILE_RANGE_WAIT_AFTER

// SyncAll implements Sharer: the data of each file are written out, then the journal is
// committed once. What is committed is the transaction of the last file's last change,
// so that is changed again behind the others' data: their blocks, sizes, modes and names
// precede it in the journal. Its fsync flushes the drive's cache, for all of them.
//
// An error of any step is returned, also of the step that only begins: ext4 drops pages for
// which it cannot allocate blocks, and the call that made it try is the only one that
// returns an error (docs/notes/group-commit.md).
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
	for i, f := range own {
		// Crash: data of files whose names and modes may be lost; no submitter was answered yet.
		err := o.calls.begin(f)
		if i == 0 && errors.Is(err, unix.ENOSYS) {
			return syncEach(files)
		}
		if err != nil {
			return f.wrap("sync_file_range", err)
		}
	}
	for _, f := range own {
		// Crash: as before.
		if err := o.calls.write(f); err != nil {
			return f.wrap("sync_file_range", err)
		}
	}
	last := own[len(own)-1]
	if err := o.calls.touch(last); err != nil {
		return last.wrap("chmod", err)
	}
	// Crash: before it returns, any of the files may be whole or not; after it, all are.
	return last.wrap("fsync", o.calls.commit(last))
}

// syncCalls are the system calls of a shared sync; tests replace them.
type syncCalls struct{ begin, write, touch, commit func(f *osFile) error }

func kernelCalls() syncCalls {
	return syncCalls{
		begin: func(f *osFile) error {
			return retry(func() error { return unix.SyncFileRange(f.fd, 0, 0, unix.SYNC_FILE_RANGE_WRITE) })
		},
		write: func(f *osFile) error {
			return retry(func() error { return unix.SyncFileRange(f.fd, 0, 0, writeOut) })
		},
		touch:  (*osFile).touch,
		commit: func(f *osFile) error { return retry(func() error { return unix.Fsync(f.fd) }) },
	}
}

// Unwritten reports whether a file has lost data in a write-back of which no call returned
// an error. info was read after a Sync that succeeded, and the program that wrote the file
// left no holes in it.
//
// When ext4 cannot allocate the blocks of pages that the kernel writes in the background,
// it drops the pages, and a later fsync returns 0. What is left to see is that the file has
// fewer blocks than bytes.
func Unwritten(f FS, info Info) bool {
	o, ok := f.(interface{ Unwritten(info Info) bool })
	return ok && o.Unwritten(info)
}

// Unwritten implements the function of that name. Other file systems count blocks
// otherwise: they compress, or count when they write.
func (o *OS) Unwritten(info Info) bool { return o.storage().counts && info.Blocks < info.Size }

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
	counts     bool // a file that was synced has its blocks counted; see Unwritten
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
	m := findMount(mounts, deviceNumber(st.Dev), "")
	s := storage{}
	switch m.Kind {
	case "xfs":
		s.journalled = true
	case "ext3", "ext4":
		// jbd2 shows the journals in use, as vda1-8; a file system without one is not there.
		dev, err := filepath.EvalSymlinks(m.Source)
		if err != nil {
			dev = m.Source
		}
		found, err := filepath.Glob("/proc/fs/jbd2/" + strings.ReplaceAll(strings.TrimPrefix(dev, "/dev/"), "/", "!") + "-*")
		s.journalled = err == nil && len(found) > 0
		s.counts = true
	}
	s.journalled = s.journalled && kernelFrom(5, 2)
	return s
}

// kernelFrom reports whether the kernel is of this version or later.
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
