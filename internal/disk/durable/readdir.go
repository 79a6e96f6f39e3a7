package durable

import (
	"bytes"
	"encoding/binary"
	"io/fs"
	"sync"

	"golang.org/x/sys/unix"
)

// ReadDir implements FS with getdents(2), which returns inode and type without a
// stat for each name.
func (o *OS) ReadDir(name string) ([]Entry, error) {
	var list []Entry
	err := o.ReadDirFunc(name, func(part []Entry) error {
		list = append(list, part...)
		return nil
	})
	return list, err
}

// ReadDirFunc calls fn with the names of a directory, some at a time and in no order,
// so that a large one is never in memory as a whole. fn must not keep the slice. A file
// that is there all the time is named once; one that comes or goes may be named or not.
func ReadDirFunc(f FS, name string, fn func(part []Entry) error) error {
	if s, ok := f.(interface {
		ReadDirFunc(name string, fn func(part []Entry) error) error
	}); ok {
		return s.ReadDirFunc(name, fn)
	}
	list, err := f.ReadDir(name)
	if err != nil {
		return err
	}
	return fn(list)
}

// ReadDirFunc is what the function of that name calls.
func (o *OS) ReadDirFunc(name string, fn func(part []Entry) error) error {
	fd, err := retryFD(func() (int, error) {
		return o.openat(name, unix.O_DIRECTORY|unix.O_RDONLY|unix.O_CLOEXEC|o.noFollow(), 0)
	})
	if err != nil {
		return o.pathError("open", name, err)
	}
	defer unix.Close(fd)
	room := readRooms.Get().(*readRoom)
	defer room.back()
	for {
		n, err := retryFD(func() (int, error) { return unix.Getdents(fd, room.raw[:]) })
		if err != nil {
			return o.pathError("readdir", name, err)
		}
		if n == 0 {
			return nil
		}
		room.list = appendEntries(room.list[:0], room.raw[:n])
		if err := fn(room.list); err != nil {
			return err
		}
	}
}

// readRoom is what one listing needs. A spool has hundreds of hash directories, which
// are listed one after the other.
type readRoom struct {
	raw  [64 << 10]byte
	list []Entry
}

var readRooms = sync.Pool{New: func() any { return new(readRoom) }}

func (r *readRoom) back() {
	clear(r.list[:cap(r.list)])
	readRooms.Put(r)
}

// appendEntries reads struct linux_dirent64: ino 8, off 8, reclen 2, type 1, name.
func appendEntries(list []Entry, b []byte) []Entry {
	for len(b) >= 19 {
		reclen := int(binary.NativeEndian.Uint16(b[16:]))
		if reclen < 19 || reclen > len(b) {
			break
		}
		raw := b[19:reclen]
		if i := bytes.IndexByte(raw, 0); i >= 0 {
			raw = raw[:i]
		}
		if s := string(raw); s != "." && s != ".." {
			list = append(list, Entry{Name: s, Ino: binary.NativeEndian.Uint64(b), Type: direntType(b[18])})
		}
		b = b[reclen:]
	}
	return list
}

func direntType(t byte) fs.FileMode {
	switch t {
	case unix.DT_REG:
		return 0
	case unix.DT_DIR:
		return fs.ModeDir
	case unix.DT_LNK:
		return fs.ModeSymlink
	case unix.DT_FIFO:
		return fs.ModeNamedPipe
	case unix.DT_SOCK:
		return fs.ModeSocket
	case unix.DT_CHR:
		return fs.ModeDevice | fs.ModeCharDevice
	case unix.DT_BLK:
		return fs.ModeDevice
	}
	return fs.ModeIrregular
}
