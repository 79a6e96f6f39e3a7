// Package socket makes and connects Unix sockets in directories whose owner root does not
// trust, at paths of any length:
//
//	l, err := socket.Listen(filepath.Join(dir, ".mailq"), 0o660)
//	c, err := socket.Dial(ctx, filepath.Join(dir, ".mailq"))
//
// A socket that a dead process has left is replaced; nothing else is. Diagnostics: errors
// name the path and unwrap to the system's.
package socket

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// Listen makes a Unix socket at a path, in place of one that is there. A socket
// that root makes belongs to the owner of its directory. Whoever calls it has made sure
// that no other process serves the path.
func Listen(path string, mode fs.FileMode) (*net.UnixListener, error) {
	at, closeDir, err := shortPath(filepath.Dir(path))
	if err != nil {
		return nil, fmt.Errorf("make socket %s: %w", path, err)
	}
	defer closeDir()
	name := filepath.Join(at, filepath.Base(path))
	info, err := os.Lstat(name)
	switch {
	case err == nil && info.Mode()&fs.ModeSocket == 0:
		return nil, fmt.Errorf("make socket %s: something else is there", path)
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("make socket %s: %w", path, err)
	}
	fresh := name + ".new"
	// Crash: a socket that no process serves; the next one who makes it takes its place.
	if err := os.Remove(fresh); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("make socket %s: %w", path, err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: fresh, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("make socket %s: %w", path, err)
	}
	l.SetUnlinkOnClose(false)
	if err = chownSocket(fresh, at, mode); err == nil {
		// Crash: under the one name or the other; who connects is refused.
		err = os.Rename(fresh, name)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("make socket %s: %w", path, err), l.Close())
	}
	return l, nil
}

// ListenAlone is Listen, unless a process serves the path.
func ListenAlone(path string, mode fs.FileMode) (*net.UnixListener, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if c, err := Dial(ctx, path); err == nil {
		return nil, errors.Join(fmt.Errorf("make socket %s: another process serves it", path), c.Close())
	}
	return Listen(path, mode)
}

// chownSocket sets the mode of a socket that was just made and, as root, gives it to the owner
// of its directory. That owner may have put something else under the name meanwhile: it is
// left alone.
func chownSocket(name, dir string, mode fs.FileMode) error {
	fd, err := unix.Open(name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return &fs.PathError{Op: "open", Path: name, Err: err}
	}
	// An O_PATH descriptor has nothing to lose.
	defer func() { _ = unix.Close(fd) }()
	var own, up unix.Stat_t
	if err := errors.Join(unix.Fstat(fd, &own), unix.Stat(dir, &up)); err != nil {
		return fmt.Errorf("look at socket %s: %w", name, err)
	}
	if own.Mode&unix.S_IFMT != unix.S_IFSOCK || own.Nlink != 1 || own.Uid != uint32(os.Geteuid()) {
		return fmt.Errorf("another process has replaced the socket %s", name)
	}
	// fchmod(2) does not take this descriptor; the name leads to it and nowhere else.
	if err := os.Chmod("/proc/self/fd/"+strconv.Itoa(fd), mode.Perm()); err != nil {
		return err
	}
	if os.Geteuid() != 0 {
		return nil
	}
	if err := unix.Fchownat(fd, "", int(up.Uid), int(up.Gid), unix.AT_EMPTY_PATH); err != nil {
		return &fs.PathError{Op: "chown", Path: name, Err: err}
	}
	return nil
}

// Dial connects to a Unix socket at a path.
func Dial(ctx context.Context, path string) (net.Conn, error) {
	at, closeDir, err := shortPath(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	defer closeDir()
	var d net.Dialer
	return d.DialContext(ctx, "unix", filepath.Join(at, filepath.Base(path)))
}

// shortPath is another name for a directory, which is good until it is closed: the path
// of a socket has room for 107 bytes.
func shortPath(dir string) (string, func(), error) {
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", nil, &fs.PathError{Op: "open", Path: dir, Err: err}
	}
	return "/proc/self/fd/" + strconv.Itoa(fd), func() { _ = unix.Close(fd) }, nil
}
