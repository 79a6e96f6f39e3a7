package closed

import (
	"io/fs"
	"path/filepath"
	"syscall"
	"time"
)

// seen is what a look at a name tells: of stat(2) what the router asks for.
type seen struct {
	Dev  uint64 `json:"dev"`
	Ino  uint64 `json:"ino"`
	Size int64  `json:"size"`
	Sec  int64  `json:"sec"` // of the last change
	Nsec int64  `json:"nsec"`
	Mode uint32 `json:"mode"`
	UID  uint32 `json:"uid"`
	GID  uint32 `json:"gid"`
	Link []byte `json:"link,omitempty"`
}

// info is it as os.Lstat gives it.
func (s *seen) info(path string) fs.FileInfo {
	return &fileInfo{filepath.Base(path), &syscall.Stat_t{
		Dev: s.Dev, Ino: s.Ino, Size: s.Size, Mtim: syscall.Timespec{Sec: s.Sec, Nsec: s.Nsec},
		Mode: s.Mode, Uid: s.UID, Gid: s.GID,
	}}
}

// fileInfo is a look at a file that another process took.
type fileInfo struct {
	name string
	st   *syscall.Stat_t
}

func (i *fileInfo) Name() string       { return i.name }
func (i *fileInfo) Size() int64        { return i.st.Size }
func (i *fileInfo) ModTime() time.Time { return time.Unix(i.st.Mtim.Unix()) }
func (i *fileInfo) IsDir() bool        { return i.Mode().IsDir() }
func (i *fileInfo) Sys() any           { return i.st }

// Mode is the mode as package fs has it.
func (i *fileInfo) Mode() fs.FileMode {
	mode := fs.FileMode(i.st.Mode & 0o777)
	switch i.st.Mode & syscall.S_IFMT {
	case syscall.S_IFREG:
	case syscall.S_IFDIR:
		mode |= fs.ModeDir
	case syscall.S_IFLNK:
		mode |= fs.ModeSymlink
	case syscall.S_IFIFO:
		mode |= fs.ModeNamedPipe
	case syscall.S_IFSOCK:
		mode |= fs.ModeSocket
	case syscall.S_IFCHR:
		mode |= fs.ModeDevice | fs.ModeCharDevice
	case syscall.S_IFBLK:
		mode |= fs.ModeDevice
	default:
		mode |= fs.ModeIrregular
	}
	for bit, is := range map[uint32]fs.FileMode{syscall.S_ISUID: fs.ModeSetuid, syscall.S_ISGID: fs.ModeSetgid, syscall.S_ISVTX: fs.ModeSticky} {
		if i.st.Mode&bit != 0 {
			mode |= is
		}
	}
	return mode
}
