// Package listen opens the addresses of the SMTP server and accepts connections on them. It
// knows TCP ports, Unix sockets and sockets that systemd has passed; it waits out a shortage
// of descriptors, takes part in the watchdog's check that accepting still works, reads PROXY
// headers, looks up host names, and keeps certificates as their files are now.
//
// It owns the Unix sockets in the file system. After a crash one stays without a listener
// and is replaced at the next start.
//
// Diagnostics: Open's errors name the address and the setting. An error of Serve other than
// net.ErrClosed is final for that listener. Errors of OpenCertificates are *config.Error.
package listen

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

	"zmailer/internal/run/ports"
	"zmailer/internal/stage/smtpserver/session"
)

// Pauses of the accept loop while the system has no descriptors or memory.
const (
	firstPause = 10 * time.Millisecond
	lastPause  = 2 * time.Second
)

// Port is the addresses of a role.
type Port struct {
	Role    session.Role
	Setting string         // that names the addresses, for errors
	Addrs   []string       // host:port, or the path of a Unix socket
	Open    []net.Listener // that are open already
}

// Open opens every address, or none.
func Open(ctx context.Context, named []Port, log *slog.Logger) ([]*Listener, error) {
	var all []*Listener
	for _, p := range named {
		for _, addr := range p.Addrs {
			l, err := openAddr(ctx, addr)
			if err != nil {
				return nil, errors.Join(fmt.Errorf("%w (%s)", err, p.Setting), CloseAll(all))
			}
			all = append(all, newListener(l, p.Role, addr, log))
		}
		for _, l := range p.Open {
			all = append(all, newListener(l, p.Role, "", log))
		}
	}
	if len(all) == 0 {
		return nil, errNoAddress
	}
	return all, nil
}

var errNoAddress = errors.New("listen: no address; SMTPLISTEN=127.0.0.1:2525 names one")

// CloseAll closes listeners.
func CloseAll(all []*Listener) (err error) {
	for _, l := range all {
		err = errors.Join(err, l.Close())
	}
	return err
}

func openAddr(ctx context.Context, addr string) (net.Listener, error) {
	if strings.Contains(addr, "/") {
		return listenUnix(ctx, addr)
	}
	return ports.Listen(ctx, addr, false)
}

// Listener accepts the connections of one address.
type Listener struct {
	net.Listener
	Role     session.Role
	name     string // the address as it is configured; "": systemd's
	log      *slog.Logger
	check    atomic.Pointer[Liveness] // nil: no one asks
	answered atomic.Uint64            // the last round of it that this listener answered
	closing  sync.Once
	done     chan struct{} // closed by Close: ends a pause
}

func newListener(l net.Listener, role session.Role, name string, log *slog.Logger) *Listener {
	return &Listener{Listener: l, Role: role, name: name, log: log, done: make(chan struct{})}
}

// Serve gives each connection to accept, which must not block, until the listener is closed
// or fails for good.
func (l *Listener) Serve(accept func(net.Conn)) error {
	pause := time.Duration(0)
	for {
		c, err := l.Accept()
		if err == nil {
			if pause > 0 {
				l.log.Info("accept-recovered", "listen", l.Addr().String())
				pause = 0
			}
			accept(c)
			continue
		}
		if l.answer(err) {
			continue
		}
		if !isShortage(err) {
			return err
		}
		if pause == 0 {
			l.log.Error("accept-trouble", "listen", l.Addr().String(), "reason", err,
				"advice", "raise the limit of open files or lower --max-connections")
			pause = firstPause
		}
		select {
		case <-time.After(pause):
		case <-l.done:
			return net.ErrClosed
		}
		pause = min(2*pause, lastPause)
	}
}

// Close implements net.Listener.
func (l *Listener) Close() error {
	l.closing.Do(func() { close(l.done) })
	return l.Listener.Close()
}

// isShortage reports whether an error of accept(2) goes away by itself: no descriptor or
// memory left, or a client that left the queue.
func isShortage(err error) bool {
	for _, e := range []error{unix.EMFILE, unix.ENFILE, unix.ENOBUFS, unix.ENOMEM, unix.ECONNABORTED, unix.EPROTO} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}
