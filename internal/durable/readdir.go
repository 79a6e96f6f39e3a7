package durable

import (
	"bytes"
	"encoding/binary"
	"io/fs"

	"golang.org/x/sys/unix"
)

// ReadDir implements FS with getdents(2), which tells inode and type without a
// stat for each name.
func (o *OS) ReadDir(name string) ([]Entry, error) {
	fd, err := retryFD(func() (int, error) {
		return unix.Openat(o.root, name, unix.O_DIRECTORY|unix.O_RDONLY|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return nil, o.pathError("open", name, err)
	}
	defer unix.Close(fd)
	var list []Entry
	buf := make([]byte, 64<<10)
	for {
		n, err := retryFD(func() (int, error) { return unix.Getdents(fd, buf) })
		if err != nil {
			return list, o.pathError("readdir", name, err)
		}
		if n == 0 {
			return list, nil
		}
		list = appendEntries(list, buf[:n])
	}
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
