package importer

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Queue is the directory of another system's queue. Its files may belong to users who
// must not make us read something else: no link is followed out of it, nor at the end of
// a path, and only regular files are read.
type Queue struct{ root *os.Root }

// OpenQueue opens a directory that must have these directories in it.
func OpenQueue(dir string, must ...string) (*Queue, error) {
	info, err := os.Stat(dir)
	if errors.Is(err, fs.ErrNotExist) || err == nil && !info.IsDir() {
		return nil, fmt.Errorf("%w: %s is no directory", ErrNoQueue, dir)
	}
	if err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	for _, name := range must {
		info, err := root.Lstat(name)
		if errors.Is(err, fs.ErrNotExist) || err == nil && !info.IsDir() {
			err = fmt.Errorf("%w: %s has no directory %s", ErrNoQueue, dir, name)
		}
		if err != nil {
			return nil, errors.Join(err, root.Close())
		}
	}
	return &Queue{root}, nil
}

// Close closes the directory.
func (q *Queue) Close() error { return q.root.Close() }

// Open opens a regular file for reading, or for reading and writing.
func (q *Queue) Open(name string, write bool) (*os.File, fs.FileInfo, error) {
	flag := os.O_RDONLY
	if write {
		flag = os.O_RDWR
	}
	f, err := q.root.OpenFile(name, flag|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	info, err := f.Stat()
	// os.Root follows a link that stays below it, whatever O_NOFOLLOW says.
	if named, lerr := q.root.Lstat(name); err == nil && (lerr != nil || !os.SameFile(info, named)) {
		err = errors.Join(fmt.Errorf("%s: a link, or replaced meanwhile", name), lerr)
	}
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s: no regular file", name)
	}
	if err != nil {
		return nil, nil, errors.Join(err, f.Close())
	}
	return f, info, nil
}

// Read reads a small regular file.
func (q *Queue) Read(name string, limit int64) ([]byte, error) {
	f, info, err := q.Open(name, false)
	if err != nil {
		return nil, err
	}
	// Opened for reading: close has nothing to lose.
	defer func() { _ = f.Close() }()
	if info.Size() > limit {
		return nil, fmt.Errorf("%s: %d bytes, at most %d are read", name, info.Size(), limit)
	}
	return io.ReadAll(io.LimitReader(f, limit))
}

// Remove unlinks a file, or an empty directory.
func (q *Queue) Remove(name string) error { return q.root.Remove(name) }

// List returns the names in a directory, sorted; none, if it is not there. Directories end in
// a slash.
func (q *Queue) List(dir string) ([]string, error) {
	entries, err := fs.ReadDir(q.root.FS(), dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	names := make([]string, 0, len(entries))
	for _, e := range entries {
		name := e.Name()
		if e.IsDir() {
			name += "/"
		}
		names = append(names, name)
	}
	return names, nil
}

// Walk calls fn with the paths of the files in a directory and, to a depth, in those below
// it. deep chooses among those; nil: all.
func (q *Queue) Walk(dir string, depth int, deep func(name string) bool, fn func(name string) error) error {
	names, err := q.List(dir)
	if err != nil {
		return err
	}
	for _, n := range names {
		below, isDir := strings.CutSuffix(n, "/")
		switch {
		case !isDir:
			err = fn(path.Join(dir, n))
		case depth > 0 && (deep == nil || deep(below)):
			err = q.Walk(path.Join(dir, below), depth-1, deep, fn)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Running finds a process, by its program's name, that works in a directory: its working
// directory or its root is it.
func Running(dir string, programs []string) (pid int, program string, err error) {
	here, err := os.Stat(dir)
	if err != nil {
		return 0, "", err
	}
	list, err := os.ReadDir("/proc")
	if err != nil {
		return 0, "", err
	}
	for _, e := range list {
		n, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		proc := filepath.Join("/proc", e.Name())
		comm, err := os.ReadFile(filepath.Join(proc, "comm"))
		name := strings.TrimSpace(string(comm))
		if err != nil || !slices.Contains(programs, name) {
			continue
		}
		if same(here, filepath.Join(proc, "cwd")) || same(here, filepath.Join(proc, "root")) {
			return n, name, nil
		}
	}
	return 0, "", nil
}

// same reports whether a path leads to that directory. Only root sees that of other users'
// processes.
func same(dir fs.FileInfo, name string) bool {
	info, err := os.Stat(name)
	if err != nil {
		return false
	}
	a, aok := dir.Sys().(*syscall.Stat_t)
	b, bok := info.Sys().(*syscall.Stat_t)
	return aok && bok && a.Dev == b.Dev && a.Ino == b.Ino
}
