// Package durable is the only door to the file system: write, fsync, rename,
// unlink, lock and sync-directory behind a small interface, so that the same
// code runs on a real disk (OS) and on a test disk that loses what was not
// synced (cutfs).
//
//	disk, err := durable.NewOS("/var/spool/postoffice")
//	err = disk.RenameNew("public/draft", "router/4711") // fails if the name is taken
//
// Names are slash-separated paths relative to the root of the FS, as in io/fs:
// no leading slash, no "..". Nothing here follows a symbolic link at the last
// element of a path.
//
// Diagnostics: every error is an *fs.PathError or *os.LinkError style error that
// names the operation and the path and unwraps to the system's errno, so
// errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENOSPC) and so on hold.
// ErrLocked means that a live process holds the lock.
package durable

import (
	"errors"
	"io"
	"io/fs"
	"time"
)

// ErrLocked is returned by Lock and TryLock's callers when a live process has it.
var ErrLocked = errors.New("locked by a live process")

// ErrNoExchange means that a file system cannot swap two names, as NFS cannot.
var ErrNoExchange = errors.New("no RENAME_EXCHANGE")

// ErrNoRenameNew means that a file system cannot rename without replacing, as GlusterFS, NFS
// and CephFS cannot.
var ErrNoRenameNew = errors.New("no RENAME_NOREPLACE")

// FS is a tree of directories and regular files.
type FS interface {
	// Open opens a file with os.O_* flags; perm is used when it creates.
	Open(name string, flag int, perm fs.FileMode) (File, error)
	// Rename moves a file, replacing what stood at newname.
	Rename(oldname, newname string) error
	// RenameNew moves a file; it fails with fs.ErrExist if newname exists. ErrNoRenameNew: the
	// file system cannot do that, and nothing has changed; see MoveNew.
	RenameNew(oldname, newname string) error
	// Exchange swaps the files of two names, in one step. ErrNoExchange: the file system
	// cannot do that.
	Exchange(a, b string) error
	// Link gives a file a second name; it fails with fs.ErrExist if newname exists.
	Link(oldname, newname string) error
	// Remove unlinks a file (not a directory).
	Remove(name string) error
	// Mkdir makes one directory with exactly this mode, whatever the umask.
	Mkdir(name string, perm fs.FileMode) error
	// Stat describes a name without following a symbolic link.
	Stat(name string) (Info, error)
	// ReadDir lists a directory in no order.
	ReadDir(name string) ([]Entry, error)
	// SyncDir makes the names in a directory durable.
	SyncDir(name string) error
	// Lock takes an exclusive lock on the file name, creating it with the given
	// content if need be, without waiting, and syncs the file; on a full disk it may be
	// without the content. The lock lives until Release or the death of the process.
	// ErrLocked: somebody alive has it. After another error no file of ours is left.
	Lock(name string, content []byte) (Lock, error)
}

// File is an open regular file. Reads and writes are complete or fail: a short
// write is an error. WriteAt must not be used on a file opened with O_APPEND
// (Linux would append), nor while Append is.
type File interface {
	io.Reader
	io.Writer
	io.ReaderAt
	io.WriterAt
	io.Closer
	// Append writes at the file's end, wherever others that append have moved that, in
	// one write(2), also if the file was not opened with O_APPEND.
	Append(b []byte) (int, error)
	// Sync makes data and metadata of the file durable (fsync).
	Sync() error
	Chmod(perm fs.FileMode) error
	// SetModTime sets the time of the last write, to the microsecond; the next Sync
	// makes it durable.
	SetModTime(t time.Time) error
	Stat() (Info, error)
	// TryLock takes an exclusive flock without waiting; false: somebody has it.
	TryLock() (bool, error)
	// TryShare takes a shared flock without waiting, beside others that share it;
	// false: somebody has it alone. A holder of the exclusive one gives that up.
	TryShare() (bool, error)
	// WaitLock takes an exclusive flock, waiting for its holder.
	WaitLock() error
	// Unlock gives the flock back; closing the file does too.
	Unlock() error
}

// Lock is a held lock file.
type Lock interface {
	// Release removes the lock file and gives the lock back.
	Release() error
	// Abandon gives the lock back and leaves the file, as the death of the process
	// does.
	Abandon() error
}

// Info describes a file.
type Info struct {
	Dev, Ino uint64
	Mode     fs.FileMode // type and permission bits
	Size     int64       // bytes
	ModTime  time.Time
	CTime    time.Time
	UID      uint32
	Nlink    uint64
	Blocks   int64 // bytes that have a place on the disk; see Unwritten
}

// Entry is one name in a directory.
type Entry struct {
	Name string
	Ino  uint64
	Type fs.FileMode // type bits only; fs.ModeIrregular if the file system does not report it
}
