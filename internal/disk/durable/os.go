package durable

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// OS is the real file system below a directory. It keeps the directory open and
// works with openat, so its path is walked once, and holds plain descriptors, so
// regular files are never offered to the runtime's poller.
type OS struct {
	tree
	storage func() storage
	calls   syncCalls
}

// tree is a directory with the names below it: how they are found, and who owns what is made
// there.
type tree struct {
	dir     string
	root    int
	inherit bool // see Inherit
	beneath bool // see Beneath
}

// NewOS opens dir as the root of a file system.
func NewOS(dir string) (*OS, error) {
	fd, err := retryFD(func() (int, error) {
		return unix.Open(dir, unix.O_DIRECTORY|unix.O_RDONLY|unix.O_CLOEXEC, 0)
	})
	return newOS(fd, dir, err)
}

// NewOSAt opens an open directory, which may be one of O_PATH, as the root of a file
// system. dir is its name in errors.
func NewOSAt(at int, dir string) (*OS, error) {
	fd, err := retryFD(func() (int, error) {
		return unix.Openat(at, ".", unix.O_DIRECTORY|unix.O_RDONLY|unix.O_CLOEXEC, 0)
	})
	return newOS(fd, dir, err)
}

func newOS(fd int, dir string, err error) (*OS, error) {
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: dir, Err: err}
	}
	return &OS{tree: tree{dir: dir, root: fd}, storage: sync.OnceValue(func() storage { return storageOf(fd) }), calls: kernelCalls()}, nil
}

// Dir returns the directory that names are relative to.
func (o *OS) Dir() string { return o.dir }

// Close gives the root descriptor back; open files stay open.
func (o *OS) Close() error { return unix.Close(o.root) }

// retry calls f until it is not interrupted: EINTR says nothing about the file.
func retry(f func() error) error {
	for {
		if err := f(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

func retryFD(f func() (int, error)) (int, error) {
	for {
		n, err := f()
		if err != unix.EINTR {
			return n, err
		}
	}
}

func (o *tree) pathError(op, name string, err error) error {
	if err == nil {
		return nil
	}
	return &fs.PathError{Op: op, Path: path.Join(o.dir, name), Err: err}
}

func (o *tree) linkError(op, oldname, newname string, err error) error {
	if err == nil {
		return nil
	}
	return &os.LinkError{Op: op, Old: path.Join(o.dir, oldname), New: path.Join(o.dir, newname), Err: err}
}

// Open implements FS.
func (o *OS) Open(name string, flag int, perm fs.FileMode) (File, error) {
	flag |= unix.O_CLOEXEC | unix.O_NOFOLLOW
	fd, err := retryFD(func() (int, error) {
		if o.inherit && flag&unix.O_CREAT != 0 {
			return o.openInherited(name, flag, uint32(perm.Perm()))
		}
		if o.inherit {
			return o.openForeign(name, flag)
		}
		return unix.Openat(o.root, name, flag, uint32(perm.Perm()))
	})
	if err != nil {
		return nil, o.pathError("open", name, err)
	}
	return &osFile{fd: fd, flag: flag, dir: o.dir, name: name}, nil
}

// Rename implements FS.
func (o *OS) Rename(oldname, newname string) error {
	err := o.doBoth(oldname, newname, func(a, b place) error { return unix.Renameat(a.dir, a.base, b.dir, b.base) })
	return o.linkError("rename", oldname, newname, err)
}

// RenameNew implements FS.
func (o *OS) RenameNew(oldname, newname string) error {
	err := o.doBoth(oldname, newname, func(a, b place) error {
		return unix.Renameat2(a.dir, a.base, b.dir, b.base, unix.RENAME_NOREPLACE)
	})
	if isNoFlag(err) {
		err = fmt.Errorf("%w: %w", ErrNoRenameNew, err)
	}
	return o.linkError("rename", oldname, newname, err)
}

// isNoFlag reports whether an error of renameat2(2) means that the file system or the kernel
// does not know the flag.
func isNoFlag(err error) bool {
	return errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EOPNOTSUPP)
}

// Exchange implements FS.
func (o *OS) Exchange(a, b string) error {
	err := o.doBoth(a, b, func(a, b place) error {
		return unix.Renameat2(a.dir, a.base, b.dir, b.base, unix.RENAME_EXCHANGE)
	})
	if isNoFlag(err) {
		err = fmt.Errorf("%w: %w", ErrNoExchange, err)
	}
	return o.linkError("exchange", a, b, err)
}

// Link implements FS.
func (o *OS) Link(oldname, newname string) error {
	err := o.doBoth(oldname, newname, func(a, b place) error { return unix.Linkat(a.dir, a.base, b.dir, b.base, 0) })
	return o.linkError("link", oldname, newname, err)
}

// Remove implements FS.
func (o *OS) Remove(name string) error {
	return o.pathError("remove", name, o.do(name, func(p place) error { return unix.Unlinkat(p.dir, p.base, 0) }))
}

// RemoveDir removes an empty directory.
func (o *OS) RemoveDir(name string) error {
	return o.pathError("remove", name, o.do(name, func(p place) error { return unix.Unlinkat(p.dir, p.base, unix.AT_REMOVEDIR) }))
}

// Mkdir implements FS.
func (o *OS) Mkdir(name string, perm fs.FileMode) error {
	mode := unixMode(perm)
	if err := o.do(name, func(p place) error { return unix.Mkdirat(p.dir, p.base, mode) }); err != nil {
		return o.pathError("mkdir", name, err)
	}
	if o.inherit {
		return o.giveAwayDir(name, mode)
	}
	return o.pathError("chmod", name, retry(func() error { return unix.Fchmodat(o.root, name, mode, 0) }))
}

// Stat implements FS.
func (o *OS) Stat(name string) (Info, error) {
	var st unix.Stat_t
	err := o.do(name, func(p place) error { return unix.Fstatat(p.dir, p.base, &st, unix.AT_SYMLINK_NOFOLLOW) })
	if err != nil {
		return Info{}, o.pathError("stat", name, err)
	}
	return infoOf(&st), nil
}

// SyncDir implements FS. Of a directory that this process may write to and not read, which
// fsync(2) needs, it syncs the whole file system instead.
func (o *OS) SyncDir(name string) error {
	fd, err := retryFD(func() (int, error) {
		return o.openat(name, unix.O_DIRECTORY|unix.O_RDONLY|unix.O_CLOEXEC|o.noFollow(), 0)
	})
	if errors.Is(err, unix.EACCES) {
		return o.pathError("syncfs", name, retry(func() error { return unix.Syncfs(o.root) }))
	}
	if err != nil {
		return o.pathError("open", name, err)
	}
	err = retry(func() error { return unix.Fsync(fd) })
	if cerr := unix.Close(fd); err == nil {
		err = cerr
	}
	return o.pathError("fsync", name, err)
}

// osFile keeps its path in two parts: only errors want it whole.
type osFile struct {
	fd        int
	flag      int // as it was opened
	dir, name string
	ends      bool // O_APPEND is set beside flag
}

func (f *osFile) wrap(op string, err error) error {
	if err == nil {
		return nil
	}
	return &fs.PathError{Op: op, Path: path.Join(f.dir, f.name), Err: err}
}

func (f *osFile) Read(b []byte) (int, error) {
	if len(b) == 0 {
		return 0, nil
	}
	n, err := retryFD(func() (int, error) { return unix.Read(f.fd, b) })
	if err != nil {
		return 0, f.wrap("read", err)
	}
	if n == 0 {
		return 0, io.EOF
	}
	return n, nil
}

func (f *osFile) ReadAt(b []byte, off int64) (int, error) {
	done := 0
	for done < len(b) {
		n, err := retryFD(func() (int, error) { return unix.Pread(f.fd, b[done:], off+int64(done)) })
		if err != nil {
			return done, f.wrap("read", err)
		}
		if n == 0 {
			return done, io.EOF
		}
		done += n
	}
	return done, nil
}

func (f *osFile) Write(b []byte) (int, error) {
	return f.writeAll(b, func(p []byte, _ int) (int, error) { return unix.Write(f.fd, p) })
}

func (f *osFile) WriteAt(b []byte, off int64) (int, error) {
	if err := f.atEnd(false); err != nil {
		return 0, err
	}
	return f.writeAll(b, func(p []byte, done int) (int, error) { return unix.Pwrite(f.fd, p, off+int64(done)) })
}

func (f *osFile) Append(b []byte) (int, error) {
	if err := f.atEnd(true); err != nil {
		return 0, err
	}
	return f.Write(b)
}

// atEnd has writes go to the end or not. It is a flag of the open file: a second
// descriptor for it costs three calls. RWF_APPEND of pwritev2(2) would be none, but a file
// system between us and the disk that does not pass it on would have a line written over
// the file's start.
func (f *osFile) atEnd(on bool) error {
	if f.ends == on || f.flag&unix.O_APPEND != 0 {
		return nil
	}
	flag := f.flag
	if on {
		flag |= unix.O_APPEND
	}
	err := retry(func() error { _, err := unix.FcntlInt(uintptr(f.fd), unix.F_SETFL, flag); return err })
	if err == nil {
		f.ends = on
	}
	return f.wrap("fcntl", err)
}

func (f *osFile) writeAll(b []byte, write func(p []byte, done int) (int, error)) (int, error) {
	done := 0
	for done < len(b) {
		n, err := retryFD(func() (int, error) { return write(b[done:], done) })
		if err != nil {
			return done, f.wrap("write", err)
		}
		if n <= 0 {
			return done, f.wrap("write", io.ErrShortWrite)
		}
		done += n
	}
	return done, nil
}

func (f *osFile) Sync() error {
	return f.wrap("fsync", retry(func() error { return unix.Fsync(f.fd) }))
}

// WriteOut has the kernel begin to write a part of a file to the disk, so that the Sync
// that follows has less to wait for. Where that cannot be done it does nothing. After an
// error the file must not be trusted: a Sync after it may succeed all the same.
func WriteOut(f File, off, n int64) error {
	if f, ok := f.(interface{ WriteOut(off, n int64) error }); ok {
		return f.WriteOut(off, n)
	}
	return nil
}

// WriteOut implements the function of that name.
func (f *osFile) WriteOut(off, n int64) error {
	// Crash: data of a file that no submitter was promised.
	err := retry(func() error { return unix.SyncFileRange(f.fd, off, n, unix.SYNC_FILE_RANGE_WRITE) })
	if errors.Is(err, unix.ENOSYS) {
		return nil
	}
	return f.wrap("sync_file_range", err)
}

func (f *osFile) Chmod(perm fs.FileMode) error {
	return f.wrap("chmod", retry(func() error { return unix.Fchmod(f.fd, unixMode(perm)) }))
}

func (f *osFile) SetModTime(t time.Time) error {
	tv := unix.NsecToTimeval(t.UnixNano())
	return f.wrap("utimes", retry(func() error { return unix.Futimes(f.fd, []unix.Timeval{tv, tv}) }))
}

func (f *osFile) Stat() (Info, error) {
	var st unix.Stat_t
	if err := retry(func() error { return unix.Fstat(f.fd, &st) }); err != nil {
		return Info{}, f.wrap("stat", err)
	}
	return infoOf(&st), nil
}

func (f *osFile) TryLock() (bool, error) { return f.tryFlock(unix.LOCK_EX) }

func (f *osFile) TryShare() (bool, error) { return f.tryFlock(unix.LOCK_SH) }

func (f *osFile) tryFlock(how int) (bool, error) {
	err := retry(func() error { return unix.Flock(f.fd, how|unix.LOCK_NB) })
	if err == unix.EWOULDBLOCK {
		return false, nil
	}
	return err == nil, f.wrap("flock", err)
}

func (f *osFile) WaitLock() error {
	return f.wrap("flock", retry(func() error { return unix.Flock(f.fd, unix.LOCK_EX) }))
}

func (f *osFile) Unlock() error {
	return f.wrap("flock", retry(func() error { return unix.Flock(f.fd, unix.LOCK_UN) }))
}

// Close closes once; a second call errs. Close is not retried on EINTR: Linux
// has released the descriptor by then.
func (f *osFile) Close() error {
	if f.fd < 0 {
		return f.wrap("close", fs.ErrClosed)
	}
	fd := f.fd
	f.fd = -1
	if err := unix.Close(fd); err != nil && err != unix.EINTR {
		return f.wrap("close", err)
	}
	return nil
}

func infoOf(st *unix.Stat_t) Info {
	return Info{
		Dev: uint64(st.Dev), Ino: st.Ino, Mode: goMode(st.Mode), Size: st.Size,
		ModTime: time.Unix(st.Mtim.Unix()), CTime: time.Unix(st.Ctim.Unix()),
		UID: st.Uid, Nlink: uint64(st.Nlink), Blocks: st.Blocks * 512,
	}
}

func unixMode(m fs.FileMode) uint32 {
	u := uint32(m.Perm())
	if m&fs.ModeSticky != 0 {
		u |= unix.S_ISVTX
	}
	if m&fs.ModeSetgid != 0 {
		u |= unix.S_ISGID
	}
	return u
}

func goMode(u uint32) fs.FileMode {
	m := fs.FileMode(u & 0o777)
	if u&unix.S_ISVTX != 0 {
		m |= fs.ModeSticky
	}
	if u&unix.S_ISGID != 0 {
		m |= fs.ModeSetgid
	}
	switch u & unix.S_IFMT {
	case unix.S_IFDIR:
		m |= fs.ModeDir
	case unix.S_IFLNK:
		m |= fs.ModeSymlink
	case unix.S_IFIFO:
		m |= fs.ModeNamedPipe
	case unix.S_IFSOCK:
		m |= fs.ModeSocket
	case unix.S_IFCHR:
		m |= fs.ModeDevice | fs.ModeCharDevice
	case unix.S_IFBLK:
		m |= fs.ModeDevice
	}
	return m
}
