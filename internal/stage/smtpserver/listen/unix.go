package listen

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// socketMode lets the owner and the group connect.
const socketMode = 0o660

// listenUnix opens a Unix socket at a path. A socket that a dead server left there is
// replaced; any other file, and a socket that answers, is an error.
func listenUnix(ctx context.Context, path string) (net.Listener, error) {
	switch info, err := os.Lstat(path); {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, fmt.Errorf("listen: %w", err)
	case info.Mode().Type() != fs.ModeSocket:
		return nil, fmt.Errorf("listen %s: a file that is not a socket exists", path)
	default:
		var d net.Dialer
		c, err := d.DialContext(ctx, "unix", path)
		if err == nil {
			_ = c.Close()
			return nil, fmt.Errorf("listen %s: another server is listening", path)
		}
		if !errors.Is(err, unix.ECONNREFUSED) {
			return nil, fmt.Errorf("listen %s: a socket exists: %w", path, err)
		}
	}
	// The socket gets its name when it has its mode.
	// Crash: path~ stays, and is replaced at the next start.
	temp := path + "~"
	if err := os.Remove(temp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("listen: %w", err)
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "unix", temp)
	if err != nil {
		return nil, err
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	u := &unixListener{Listener: l, path: path}
	if err = os.Chmod(temp, socketMode); err == nil {
		if u.made, err = os.Lstat(temp); err == nil {
			err = os.Rename(temp, path)
		}
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("listen %s: %w", path, err), os.Remove(temp), l.Close())
	}
	return u, nil
}

// unixListener removes its socket when it is closed, unless another listener has replaced it.
type unixListener struct {
	net.Listener
	path string
	made fs.FileInfo
}

// Addr implements net.Listener.
func (u *unixListener) Addr() net.Addr { return &net.UnixAddr{Net: "unix", Name: u.path} }

// SetDeadline implements deadliner.
func (u *unixListener) SetDeadline(t time.Time) error {
	return u.Listener.(*net.UnixListener).SetDeadline(t)
}

// SyscallConn implements syscall.Conn.
func (u *unixListener) SyscallConn() (syscall.RawConn, error) {
	return u.Listener.(*net.UnixListener).SyscallConn()
}

// Close implements net.Listener.
func (u *unixListener) Close() error {
	if info, err := os.Lstat(u.path); err == nil && os.SameFile(info, u.made) {
		// What stays is replaced at the next start.
		_ = os.Remove(u.path)
	}
	return u.Listener.Close()
}
