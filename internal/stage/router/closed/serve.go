package closed

import (
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"zmailer/internal/run/helper"
)

// atOnce is how many files are looked for at once: one may be on a disk that hangs.
const atOnce = 64

// Serve answers a router until it ends.
func Serve(conn *net.UnixConn, p Policy) error {
	places := make(chan struct{}, atOnce)
	var writing sync.Mutex
	for {
		var o order
		files, err := helper.Receive(conn, maxMessage, &o)
		for _, f := range files {
			_ = f.Close() // the router sends none
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		places <- struct{}{}
		go func() {
			defer func() { <-places }()
			reply(conn, &writing, p, o)
		}()
	}
}

type replier interface {
	WriteMsgUnix(b, oob []byte, addr *net.UnixAddr) (n, oobn int, err error)
}

// reply answers one order. Where that fails the router has ended.
func reply(conn replier, writing *sync.Mutex, p Policy, o order) {
	a := answer{N: o.N}
	fd, err := -1, error(nil)
	if o.Open != nil {
		fd, err = p.open(string(o.Open))
	} else {
		a.Seen, err = lookUp(string(o.Look))
	}
	var rights []byte
	switch {
	case err != nil:
		a.Errno = errno(err)
	case fd >= 0:
		defer unix.Close(fd)
		rights = unix.UnixRights(fd)
	}
	if say(conn, writing, a, rights) != nil && rights != nil {
		// Too many descriptors are under way, or there is no memory for this one: without it
		// the answer goes through.
		_ = say(conn, writing, answer{N: o.N, Errno: syscall.EIO}, nil)
	}
}

func say(conn replier, writing *sync.Mutex, a answer, rights []byte) error {
	b, err := json.Marshal(a)
	if err != nil {
		return err
	}
	writing.Lock()
	defer writing.Unlock()
	_, _, err = conn.WriteMsgUnix(b, rights, nil)
	return err
}

func errno(err error) syscall.Errno {
	if e := syscall.Errno(0); errors.As(err, &e) {
		return e
	}
	return syscall.EIO
}

// lookUp returns what a name is. The descriptor by which it is seen is not handed on: what is
// below a directory could be walked from it.
func lookUp(path string) (*seen, error) {
	fd, err := openPath(path, unix.O_NOFOLLOW)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	st := info.Sys().(*syscall.Stat_t)
	s := &seen{
		Dev: st.Dev, Ino: st.Ino, Size: st.Size, Sec: st.Mtim.Sec, Nsec: st.Mtim.Nsec,
		Mode: st.Mode, Kind: uint32(info.Mode()), UID: st.Uid, GID: st.Gid,
	}
	if info.Mode()&fs.ModeSymlink == 0 {
		return s, nil
	}
	b := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(fd, "", b)
	if err != nil {
		return nil, err
	}
	s.Link = b[:n]
	return s, nil
}

func openPath(path string, flags int) (fd int, err error) {
	if !filepath.IsAbs(path) {
		return -1, syscall.EINVAL
	}
	return unix.Open(path, unix.O_PATH|unix.O_CLOEXEC|flags, 0)
}
