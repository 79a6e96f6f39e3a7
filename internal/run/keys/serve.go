package keys

import (
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"zmailer/internal/run/helper"
)

// mostClients bounds the connections that a daemon has served for programs it has started.
const mostClients = 1000

// Serve answers a daemon until it ends.
func Serve(conn *net.UnixConn, p *Policy) error {
	s := &server{policy: p}
	err := s.serve(conn, true)
	_ = conn.Close() // the daemon has ended
	return err
}

// server is a helper with its connections.
type server struct {
	policy *Policy

	mu      sync.Mutex
	clients int
}

// serve answers one connection. first: it may bring others.
func (s *server) serve(conn *net.UnixConn, first bool) error {
	for {
		var r request
		files, err := helper.Receive(conn, maxMessage, &r)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		switch {
		case r.Listen != "":
			closeAll(files) // a request for an address brings none
			err = s.listen(conn, r, first)
		case r.Path == nil:
			err = s.say(conn, answer{N: r.N, Errno: s.admit(files, first)}, -1)
		default:
			closeAll(files) // a request for a file brings none
			err = s.open(conn, r)
		}
		if err != nil {
			return err
		}
	}
}

// admit serves another connection.
func (s *server) admit(files []*os.File, first bool) syscall.Errno {
	defer closeAll(files) // a connection has a descriptor of its own
	if !first || len(files) != 1 {
		return syscall.EPERM
	}
	c, err := net.FileConn(files[0])
	if err != nil {
		return syscall.EINVAL
	}
	u, ok := c.(*net.UnixConn)
	s.mu.Lock()
	defer s.mu.Unlock()
	if !ok || s.clients >= mostClients {
		_ = c.Close()
		return syscall.EAGAIN
	}
	s.clients++
	go func() {
		// It ends when the program does; what goes wrong with one is no concern of the others.
		_ = s.serve(u, false)
		_ = u.Close()
		s.mu.Lock()
		s.clients--
		s.mu.Unlock()
	}()
	return 0
}

// listen answers a request for an address. first: it is the daemon's own.
func (s *server) listen(conn *net.UnixConn, r request, first bool) error {
	fd, err := -1, error(&refusal{"this program may not listen"})
	if first {
		fd, err = s.policy.listen(r.Listen, r.Share)
	}
	return s.reply(conn, r, fd, err)
}

// open answers a request for a file.
func (s *server) open(conn *net.UnixConn, r request) error {
	fd, err := s.policy.open(string(r.Path))
	return s.reply(conn, r, fd, err)
}

// reply answers with a descriptor, which it closes, or an error.
func (s *server) reply(conn *net.UnixConn, r request, fd int, err error) error {
	a := answer{N: r.N}
	refused := (*refusal)(nil)
	switch {
	case errors.As(err, &refused):
		a.Refused = refused.reason
	case err != nil:
		if a.Errno = syscall.EIO; !errors.As(err, &a.Errno) {
			a.Errno = syscall.EIO
		}
	default:
		defer unix.Close(fd)
	}
	return s.say(conn, a, fd)
}

func (s *server) say(conn *net.UnixConn, a answer, fd int) error {
	b, err := json.Marshal(a)
	if err != nil {
		return err
	}
	var rights []byte
	if fd >= 0 {
		rights = unix.UnixRights(fd)
	}
	_, _, err = conn.WriteMsgUnix(b, rights, nil)
	return err
}
