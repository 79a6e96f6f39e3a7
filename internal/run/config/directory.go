package config

import (
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

// dirSettle is how old a directory's last change must be before it is taken for what the
// directory contains: file systems whose times are coarse give the next change the same time.
const dirSettle = 2 * time.Second

// Directory is a directory with files that need not be there. One look at it shows that none of
// them has been made; otherwise each would be looked for. Many files may share one; nil does
// nothing.
type Directory struct {
	path string

	mu     sync.Mutex
	looked time.Time
	last   dirState
}

// dirState is a directory at a moment. Each name that is added changes it; the zero value is of
// none.
type dirState struct {
	dev, ino     uint64
	mtime, ctime syscall.Timespec
}

// NewDirectory makes one. It looks at nothing yet.
func NewDirectory(path string) *Directory { return &Directory{path: filepath.Clean(path)} }

// holds reports whether a file is in the directory.
func (d *Directory) holds(file string) bool { return d != nil && filepath.Dir(file) == d.path }

// state returns the state of the directory, not older than filePeriod. The zero value: it is not
// known, or a change now might not be seen.
func (d *Directory) state(now time.Time) dirState {
	if d == nil {
		return dirState{}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if age := now.Sub(d.looked); age >= 0 && age < filePeriod {
		return d.last
	}
	d.looked, d.last = now, dirState{}
	info, err := os.Stat(d.path)
	if err != nil {
		return dirState{}
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if age := time.Since(info.ModTime()); ok && age >= dirSettle {
		d.last = dirState{dev: uint64(st.Dev), ino: st.Ino, mtime: st.Mtim, ctime: st.Ctim}
	}
	return d.last
}

// isAbsent reports whether there is no name at all: the target of a symbolic link may be made in
// another directory.
func isAbsent(path string) bool {
	_, err := os.Lstat(path)
	return err != nil && os.IsNotExist(err)
}

// stat is how a file is looked at; tests count it.
type stat func(path string) (fs.FileInfo, error)
