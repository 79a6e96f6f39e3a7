package closed

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"

	"zmailer/internal/machine"
)

// Start starts this program again with an argument, to serve us; env is added to its
// environment. It ends when we do: our end of the connection is all that it lives by.
func Start(argument string, env ...string) (*Client, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("make a connection: %w", err)
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "reader"), os.NewFile(uintptr(fds[1]), "router")
	defer ours.Close() // the connection has a descriptor of its own
	defer theirs.Close()
	cmd := exec.Command(self, argument)
	cmd.Env, cmd.Stderr, cmd.ExtraFiles = append(os.Environ(), env...), os.Stderr, []*os.File{theirs}
	// A terminal's interrupt is for us.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := machine.Start(cmd); err != nil {
		return nil, err
	}
	go func() { _ = cmd.Wait() }() // its end is seen on the connection
	conn, err := unixConn(ours)
	if err != nil {
		return nil, err
	}
	return NewClient(conn), nil
}

// Inherited is the connection that Start has passed to this process.
func Inherited() (*net.UnixConn, error) {
	f := os.NewFile(3, "router")
	defer f.Close() // the connection has one of its own
	return unixConn(f)
}

func unixConn(f *os.File) (*net.UnixConn, error) {
	conn, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	u, ok := conn.(*net.UnixConn)
	if !ok {
		return nil, errors.Join(errors.New("not a Unix socket"), conn.Close())
	}
	return u, nil
}
