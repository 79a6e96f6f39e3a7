package smtpserver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Pauses of the accept loop while the system has no descriptors or memory.
const (
	firstPause = 10 * time.Millisecond
	lastPause  = 2 * time.Second
)

// opened is an open address and what it is for.
type opened struct {
	net.Listener
	role Role
}

// listen opens every configured address, or none.
func (s *Config) listen(ctx context.Context) ([]opened, error) {
	// Our own time limits find a dead client; probes would only cost system calls.
	lc := net.ListenConfig{KeepAlive: -1}
	var all []opened
	for _, place := range []struct {
		role    Role
		setting string
		addrs   []string
	}{
		{RoleMX, "SMTPLISTEN or --listen", s.Listen},
		{RoleSubmission, "SUBMISSIONLISTEN", s.SubmissionListen},
		{RoleSubmissions, "SUBMISSIONSLISTEN", s.SubmissionsListen},
		{RoleLMTP, "LMTPLISTEN", s.LMTPListen},
	} {
		open := s.Activated[place.role]
		if len(open) > 0 || place.role == RoleMX && s.ListenUnset && len(s.Activated) > 0 {
			place.addrs = nil
		}
		for _, addr := range place.addrs {
			l, err := listenAt(ctx, lc, addr)
			if err != nil {
				return nil, errors.Join(fmt.Errorf("%w (%s)", err, place.setting), closeAll(all))
			}
			open = append(open, l)
		}
		for _, l := range open {
			all = append(all, opened{l, place.role})
		}
	}
	if len(all) == 0 {
		return nil, errors.New("listen: no address; SMTPLISTEN=127.0.0.1:2525 names one")
	}
	return all, nil
}

func closeAll(all []opened) (err error) {
	for _, l := range all {
		err = errors.Join(err, l.Close())
	}
	return err
}

// listeners have the server accept on open addresses.
func (s *server) listeners(open []opened) (all []*listener) {
	for _, l := range open {
		all = append(all, &listener{Listener: l.Listener, role: l.role, srv: s, done: make(chan struct{})})
	}
	return all
}

// listenAt opens host:port or the path of a Unix socket.
func listenAt(ctx context.Context, lc net.ListenConfig, addr string) (net.Listener, error) {
	if strings.Contains(addr, "/") {
		return listenUnix(ctx, lc, addr)
	}
	return lc.Listen(ctx, "tcp", addr)
}

// listener accepts connections as wires, at most so many at once.
type listener struct {
	net.Listener
	srv      *server
	role     Role
	entrance *entrance
	calls    atomic.Pointer[rollCall] // nil: nobody asks
	answered atomic.Uint64            // the last call that it has answered
	closing  sync.Once
	done     chan struct{} // closed by Close: ends a pause
}

// Accept implements net.Listener. Its errors are final.
func (l *listener) Accept() (net.Conn, error) {
	pause := time.Duration(0)
	for {
		c, err := l.Listener.Accept()
		if err == nil {
			if pause > 0 {
				l.srv.Log.Info("accept-recovered", "listen", l.Addr().String())
				pause = 0
			}
			w := newWire(c, l.srv)
			w.entrance, w.client.role = l.entrance, l.role
			if !l.srv.opened(w) {
				l.refuse(c)
				continue
			}
			if l.srv.prepares(w) {
				go l.srv.prepare(w)
				continue
			}
			if l.srv.admits(w) {
				return w, nil
			}
			continue
		}
		if l.answers(err) {
			continue
		}
		if !isShortage(err) {
			return nil, err
		}
		if pause == 0 {
			l.srv.Log.Error("accept-trouble", "listen", l.Addr().String(), "reason", err,
				"advice", "raise the limit of open files or lower --max-connections")
			pause = firstPause
		}
		select {
		case <-time.After(pause):
		case <-l.done:
			return nil, net.ErrClosed
		}
		pause = min(2*pause, lastPause)
	}
}

// Close implements net.Listener.
func (l *listener) Close() error {
	l.closing.Do(func() { close(l.done) })
	return l.Listener.Close()
}

// isShortage tells an error of accept(2) that goes away by itself: no descriptor or
// memory left, or a client that left the queue.
func isShortage(err error) bool {
	for _, e := range []error{unix.EMFILE, unix.ENFILE, unix.ENOBUFS, unix.ENOMEM, unix.ECONNABORTED, unix.EPROTO} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// refuse answers a connection that is one too many (RFC 5321 §3.1 allows 421 in
// place of the greeting).
func (l *listener) refuse(c net.Conn) {
	l.srv.meters.turnedAway.With(string(l.role)).Add(1)
	l.srv.Log.Warn("refused", "client", c.RemoteAddr().String(), "status", "4.3.2", "reply", "too many connections")
	if l.role != RoleSubmissions {
		// The line fits into an empty socket's buffer; a client that is gone is refused
		// either way.
		_, _ = c.Write([]byte("421 4.3.2 " + l.srv.Hostname + " has too many connections, try again later\r\n"))
	}
	_ = c.Close()
}

// complaint says a trouble once, and once that it is over.
type complaint struct {
	mu sync.Mutex
	on bool
}

// begin logs the trouble unless it was logged before and is not over.
func (c *complaint) begin(log *slog.Logger, event string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.on {
		c.on = true
		log.Error(event, args...)
	}
}

// end logs that the trouble is over, if there was one.
func (c *complaint) end(log *slog.Logger, event string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.on {
		c.on = false
		log.Info(event, args...)
	}
}
