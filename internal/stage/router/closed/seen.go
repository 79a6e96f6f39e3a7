package closed

import (
	"io/fs"
	"path/filepath"
	"syscall"
	"time"
)

// seen is what the router needs of stat(2).
type seen struct {
	Dev  uint64 `json:"dev"`
	Ino  uint64 `json:"ino"`
	Size int64  `json:"size"`
	Sec  int64  `json:"sec"` // of the last change
	Nsec int64  `json:"nsec"`
	Mode uint32 `json:"mode"`
	Kind uint32 `json:"kind"` // Mode as package fs has it
	UID  uint32 `json:"uid"`
	GID  uint32 `json:"gid"`
	Link []byte `json:"link,omitempty"`
}

// info is it as os.Lstat gives it.
func (s *seen) info(path string) fs.FileInfo {
	return &fileInfo{filepath.Base(path), fs.FileMode(s.Kind), &syscall.Stat_t{
		Dev: s.Dev, Ino: s.Ino, Size: s.Size, Mtim: syscall.Timespec{Sec: s.Sec, Nsec: s.Nsec},
		Mode: s.Mode, Uid: s.UID, Gid: s.GID,
	}}
}

// fileInfo is a look at a file that another process took.
type fileInfo struct {
	name string
	mode fs.FileMode
	st   *syscall.Stat_t
}

func (i *fileInfo) Name() string       { return i.name }
func (i *fileInfo) Size() int64        { return i.st.Size }
func (i *fileInfo) ModTime() time.Time { return time.Unix(i.st.Mtim.Unix()) }
func (i *fileInfo) Mode() fs.FileMode  { return i.mode }
func (i *fileInfo) IsDir() bool        { return i.mode.IsDir() }
func (i *fileInfo) Sys() any           { return i.st }
