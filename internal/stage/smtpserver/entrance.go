package smtpserver

import (
	"io"
	"net"
	"sync"

	"github.com/emersion/go-smtp"
)

// entrance is what the listeners of a role share: go-smtp's server for it, and a
// listener that gives that server the connections which come to it otherwise than by
// accept(2): after TLS or a lookup has been waited for, and those that begin anew.
type entrance struct {
	role    Role
	library *smtp.Server

	ready   chan *wire
	closing sync.Once
	done    chan struct{} // closed by Close
}

func (s *server) newEntrance(role Role) *entrance {
	return &entrance{role: role, library: s.library(role), ready: make(chan *wire), done: make(chan struct{})}
}

// Accept implements net.Listener.
func (e *entrance) Accept() (net.Conn, error) {
	select {
	case w := <-e.ready:
		return w, nil
	case <-e.done:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (e *entrance) Close() error {
	e.closing.Do(func() { close(e.done) })
	return nil
}

// Addr implements net.Listener.
func (e *entrance) Addr() net.Addr { return &net.UnixAddr{Net: "unix", Name: string(e.role)} }

// enter gives a connection to go-smtp; false: the server is stopping.
func (e *entrance) enter(w *wire) bool {
	select {
	case e.ready <- w:
		return true
	case <-e.done:
		return false
	}
}

// restart ends go-smtp's session after the reply that is said, and has the connection
// begin a new one that knows nothing of the old, after STARTTLS (RFC 3207 §4.2) and
// XCLIENT. With quiet, the client gets no second greeting.
func (w *wire) restart(quiet bool) {
	w.finish()
	w.restarting = true
	if quiet {
		w.mute = 1
	}
	w.err = io.EOF
}

// begunAnew gives the connection to a new session of go-smtp.
func (w *wire) begunAnew() bool {
	w.restarting = false
	if w.entrance == nil {
		return false
	}
	w.err, w.asked, w.session, w.with, w.line = nil, false, nil, "", w.line[:0]
	// From here on another goroutine may have it.
	return w.entrance.enter(w)
}

// leave ends the connection after the replies that are said.
func (w *wire) leave() { w.err = io.EOF }
