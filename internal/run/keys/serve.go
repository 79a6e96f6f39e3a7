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

// mostClients bounds the connections that a daemon has served for programs it has started, and
// mostHanded those of them that such programs have for others.
const (
	mostClients = 1000
	mostHanded  = 200
)

// Serve answers a daemon until it ends.
func Serve(conn *net.UnixConn, p *Policy) error {
	s := &server{policy: p}
	err := s.serve(conn, scope{first: true})
	_ = conn.Close() // the daemon has ended
	return err
}

// server is a helper with its connections.
type server struct {
	policy *Policy

	mu      sync.Mutex
	clients int
	handed  int // of clients, those that other clients have brought
}

// scope is what a connection may ask for.
type scope struct {
	first bool   // it is the daemon's: it may bring others, and asks for addresses
	only  string // the file, with those that it names; "": all. One that has it brings no others
}

// serve answers one connection.
func (s *server) serve(conn *net.UnixConn, of scope) error {
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
			err = s.listen(conn, r, of.first)
		case r.Path == nil:
			err = s.say(conn, answer{N: r.N, Errno: s.admit(files, of, string(r.Only))}, -1)
		default:
			closeAll(files) // a request for a file brings none
			err = s.open(conn, r, of.only)
		}
		if err != nil {
			return err
		}
	}
}

// admit serves another connection, for one file or, if the daemon brings it, all. A program that the
// daemon has started may have one for a file: router --verify for the program lookup.
func (s *server) admit(files []*os.File, by scope, only string) syscall.Errno {
	defer closeAll(files) // a connection has a descriptor of its own
	if by.only != "" || !by.first && only == "" || len(files) != 1 {
		return syscall.EPERM
	}
	c, err := net.FileConn(files[0])
	if err != nil {
		return syscall.EINVAL
	}
	u, ok := c.(*net.UnixConn)
	s.mu.Lock()
	defer s.mu.Unlock()
	if !ok || s.clients >= mostClients || !by.first && s.handed >= mostHanded {
		_ = c.Close()
		return syscall.EAGAIN
	}
	handed := 0
	if !by.first {
		handed = 1
	}
	s.clients, s.handed = s.clients+1, s.handed+handed
	go func() {
		// It ends when the program does; what goes wrong with one is no concern of the others.
		_ = s.serve(u, scope{only: only})
		_ = u.Close()
		s.mu.Lock()
		s.clients, s.handed = s.clients-1, s.handed-handed
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
func (s *server) open(conn *net.UnixConn, r request, only string) error {
	fd, err := s.policy.open(string(r.Path), only)
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
