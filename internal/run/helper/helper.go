// Package helper starts this program once more, with other rights than we shall have, and
// connects the two: a socket of type SOCK_SEQPACKET that takes a message of JSON at a time,
// with descriptors. The other one ends with us, because its end of the connection is all
// that it lives by. The router has such a process for files in closed directories, the
// scheduler for agents. It owns nothing on disk.
//
// Diagnostics: io.EOF means that the other one has ended. All other errors name what failed.
package helper

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"

	"zmailer/internal/run/config"
	"zmailer/internal/run/machine"
)

// Start starts this program with an argument, for the same postoffice.
func Start(argument string, settings *config.Config) (*net.UnixConn, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	ours, theirs, err := Sockets()
	if err != nil {
		return nil, err
	}
	defer ours.Close() // the connection has a descriptor of its own
	defer theirs.Close()
	cmd := exec.Command(self, argument)
	cmd.Env = append(os.Environ(), "POSTOFFICE="+settings.PostOffice())
	if settings.File != "" {
		cmd.Env = append(cmd.Env, "ZCONFIG="+settings.File)
	}
	cmd.Stderr, cmd.ExtraFiles = os.Stderr, []*os.File{theirs}
	// A terminal's interrupt is for us.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := machine.Start(cmd); err != nil {
		return nil, err
	}
	go func() { _ = cmd.Wait() }() // its end is seen on the connection
	return connection(ours)
}

// Sockets returns the two ends of a connection, for a process that is to inherit one.
func Sockets() (ours, theirs *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("make a connection: %w", err)
	}
	return os.NewFile(uintptr(fds[0]), "ours"), os.NewFile(uintptr(fds[1]), "theirs"), nil
}

// Pair returns the two ends of a connection in this process.
func Pair() (one, other *net.UnixConn, err error) {
	a, b, err := Sockets()
	if err != nil {
		return nil, nil, err
	}
	defer a.Close() // a connection has a descriptor of its own
	defer b.Close()
	if one, err = connection(a); err != nil {
		return nil, nil, err
	}
	if other, err = connection(b); err != nil {
		return nil, nil, errors.Join(err, one.Close())
	}
	return one, other, nil
}

// Inherited returns the connection that Start has passed to this process. What this one
// starts does not get it.
func Inherited() (*net.UnixConn, error) {
	f := os.NewFile(3, "inherited")
	defer f.Close() // the connection has one of its own
	return connection(f)
}

func connection(f *os.File) (*net.UnixConn, error) {
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

// mostFiles may come with a message; further files are lost.
const mostFiles = 4

// Receive reads a message of at most limit bytes, and the files that came with it.
func Receive(conn *net.UnixConn, limit int, message any) (files []*os.File, err error) {
	b, rights := make([]byte, limit), make([]byte, unix.CmsgSpace(4*mostFiles))
	n, rn, _, _, err := conn.ReadMsgUnix(b, rights)
	if errors.Is(err, io.EOF) || err == nil && n == 0 {
		return nil, io.EOF
	}
	if err != nil {
		return nil, err
	}
	list, err := unix.ParseSocketControlMessage(rights[:rn])
	if err != nil {
		return nil, fmt.Errorf("read a message: %w", err)
	}
	for i := range list {
		fds, err := unix.ParseUnixRights(&list[i])
		if err != nil {
			continue // something else that came with it
		}
		for _, fd := range fds {
			unix.CloseOnExec(fd)
			files = append(files, os.NewFile(uintptr(fd), "received"))
		}
	}
	if err := json.Unmarshal(b[:n], message); err != nil {
		for _, f := range files {
			_ = f.Close() // it is not used
		}
		return nil, fmt.Errorf("read a message: %w", err)
	}
	return files, nil
}
