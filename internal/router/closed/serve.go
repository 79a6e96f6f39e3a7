package closed

import (
	"encoding/json"
	"errors"
	"io"
	"net"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// atOnce is how many files are looked for at once: one may be on a disk that hangs.
const atOnce = 64

// Serve answers a router until it ends.
func Serve(conn *net.UnixConn) error {
	places := make(chan struct{}, atOnce)
	var writing sync.Mutex
	for {
		var o order
		files, err := receive(conn, &o)
		for _, f := range files {
			_ = f.Close() // nobody sends any
		}
		if errors.Is(err, ErrGone) || errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		places <- struct{}{}
		go func() {
			defer func() { <-places }()
			reply(conn, &writing, o)
		}()
	}
}

// reply answers one order. Where that fails the router has ended.
func reply(conn *net.UnixConn, writing *sync.Mutex, o order) {
	fd, err := obey(o)
	a := answer{N: o.N}
	var rights []byte
	if err == nil {
		defer unix.Close(fd)
		rights = unix.UnixRights(fd)
	} else if !errors.As(err, &a.Errno) {
		a.Errno = syscall.EIO
	}
	b, err := json.Marshal(a)
	if err != nil {
		return
	}
	writing.Lock()
	defer writing.Unlock()
	_, _, _ = conn.WriteMsgUnix(b, rights, nil)
}

// obey looks a name up, or opens what is there.
func obey(o order) (fd int, err error) {
	path, flags := o.Look, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC
	if o.Open != "" {
		path, flags = o.Open, unix.O_PATH|unix.O_CLOEXEC
	}
	if !filepath.IsAbs(path) {
		return -1, syscall.EINVAL
	}
	if fd, err = unix.Open(path, flags, 0); err != nil || o.Open == "" {
		return fd, err
	}
	// Nothing but a file of an ordinary user is opened: a device might do something at that,
	// and what is root's is none of the router's.
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return -1, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || st.Uid == 0 {
		return -1, syscall.EACCES
	}
	return unix.Open("/proc/self/fd/"+strconv.Itoa(fd), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
}
