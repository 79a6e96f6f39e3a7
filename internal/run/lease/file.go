package lease

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// fileID identifies a file.
type fileID struct{ dev, ino uint64 }

func identify(f *os.File) fileID {
	var st unix.Stat_t
	if unix.Fstat(int(f.Fd()), &st) != nil {
		return fileID{}
	}
	return fileID{st.Dev, st.Ino}
}

// openFile opens a page, if no user but those accepted could have made or altered it: each
// directory above it and the file itself belong to one of them and cannot be written by others,
// and none is a symbolic link. A directory with the sticky bit, like /tmp, may be written by
// others: what is in it and belongs to an accepted user was put there by that user.
func openFile(path string, flags int, owners []uint32) (*os.File, error) {
	dir, err := openDir(filepath.Dir(path), owners)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	fd, err := unix.Openat(int(dir.Fd()), filepath.Base(path), flags|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	f := os.NewFile(uintptr(fd), path)
	if err = checkFile(fd, path, owners); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// checkFile checks an open file.
func checkFile(fd int, path string, owners []uint32) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return &os.PathError{Op: "stat", Path: path, Err: err}
	}
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return fmt.Errorf("%s is no regular file", path)
	case !accepted(st.Uid, owners):
		return fmt.Errorf("%s belongs to user %d, who may not publish a lease", path, st.Uid)
	case st.Mode&0o022 != 0:
		return fmt.Errorf("%s may be written by other users (mode %04o)", path, st.Mode&0o7777)
	case st.Nlink != 1:
		return fmt.Errorf("%s has %d names", path, st.Nlink)
	case st.Size != size:
		return fmt.Errorf("the page is damaged: it has %d bytes", st.Size)
	}
	return nil
}

// openDir opens a directory that no other user can change.
func openDir(path string, owners []uint32) (*os.File, error) {
	fd, err := unix.Open("/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: "/", Err: err}
	}
	for name := range strings.SplitSeq(strings.Trim(filepath.Clean(path), "/"), "/") {
		if name == "" {
			continue
		}
		if err = checkDir(fd, path, owners); err != nil {
			break
		}
		next, operr := unix.Openat(fd, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		unix.Close(fd)
		if fd = next; operr != nil {
			return nil, &os.PathError{Op: "open " + name + " of", Path: path, Err: operr}
		}
	}
	if err == nil {
		err = checkDir(fd, path, owners)
	}
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	return os.NewFile(uintptr(fd), path), nil
}

func checkDir(fd int, path string, owners []uint32) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return &os.PathError{Op: "stat", Path: path, Err: err}
	}
	switch {
	case !accepted(st.Uid, owners):
		return fmt.Errorf("%s, or a directory above it, belongs to user %d, who may not publish a lease", path, st.Uid)
	case st.Mode&0o022 != 0 && st.Mode&unix.S_ISVTX == 0:
		return fmt.Errorf("%s, or a directory above it, may be written by other users (mode %04o)", path, st.Mode&0o7777)
	}
	return nil
}

// accepted reports whether a page of a user counts. What this process's own user could make needs
// no defence against that user.
func accepted(uid uint32, owners []uint32) bool {
	return uid == 0 || uid == uint32(os.Geteuid()) || slices.Contains(owners, uid)
}

// mapFile maps a page.
func mapFile(f *os.File, prot int) (*memory, error) {
	b, err := unix.Mmap(int(f.Fd()), 0, size, prot, unix.MAP_SHARED)
	if err != nil {
		return nil, &os.PathError{Op: "mmap", Path: f.Name(), Err: err}
	}
	return (*memory)(unsafe.Pointer(unsafe.SliceData(b))), nil
}

// bytes returns the page as mmap did.
func (m *memory) bytes() []byte { return unsafe.Slice((*byte)(unsafe.Pointer(m)), size) }
