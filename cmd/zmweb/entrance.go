package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"zmailer/internal/admin/webconf"
	"zmailer/internal/run/config"
	"zmailer/internal/run/ports"
	"zmailer/internal/stage/smtpserver/listen"
)

// acceptPause is how long no connection is accepted when descriptors are used up.
const acceptPause = 100 * time.Millisecond

// entrance is a listener whose address and TLS may change while it is used.
type entrance struct {
	conns chan net.Conn
	ended chan struct{}
	tls   atomic.Pointer[tls.Config] // nil: none

	mu     sync.Mutex
	ln     net.Listener
	closed bool
}

func newEntrance(ln net.Listener, conf *tls.Config) *entrance {
	e := &entrance{conns: make(chan net.Conn), ended: make(chan struct{})}
	e.use(ln, conf)
	return e
}

// use has connections of ln accepted from now on, with TLS if conf is not nil. The listener before
// is closed if it is another one.
func (e *entrance) use(ln net.Listener, conf *tls.Config) {
	e.tls.Store(conf)
	if before := e.swap(ln); before != nil {
		ports.Drain(before, e.give)
		_ = before.Close() // nothing is sent to it any more
	}
}

// swap accepts from ln and returns the listener before it, nil if it is the same or there was none.
func (e *entrance) swap(ln net.Listener) (before net.Listener) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if before = e.ln; before == ln {
		return nil
	}
	e.ln = ln
	if e.closed {
		_ = ln.Close()
		return before
	}
	go e.feed(ln)
	return before
}

// feed accepts until ln is closed.
func (e *entrance) feed(ln net.Listener) {
	for {
		conn, err := ln.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			select {
			case <-time.After(acceptPause):
				continue
			case <-e.ended:
				return
			}
		}
		e.give(conn)
	}
}

// give has a connection served.
func (e *entrance) give(conn net.Conn) {
	select {
	case e.conns <- conn:
	case <-e.ended:
		_ = conn.Close()
	}
}

// Accept implements net.Listener.
func (e *entrance) Accept() (net.Conn, error) {
	select {
	case conn := <-e.conns:
		if conf := e.tls.Load(); conf != nil {
			return tls.Server(conn, conf), nil
		}
		return conn, nil
	case <-e.ended:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (e *entrance) Close() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return nil
	}
	e.closed = true
	close(e.ended)
	return e.ln.Close()
}

// Addr implements net.Listener.
func (e *entrance) Addr() net.Addr { return e.listener().Addr() }

func (e *entrance) listener() net.Listener {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.ln
}

// open listens, perhaps beside the listeners that it replaces. That other machines do not reach it
// without TLS was checked before.
func open(ctx context.Context, w webconf.Settings, settings *config.Config, replaces ...net.Listener) (net.Listener, error) {
	ln, err := listen.OpenBeside(ctx, w.Listen, replaces...)
	if errors.Is(err, syscall.EADDRINUSE) || errors.Is(err, syscall.EACCES) {
		return nil, fmt.Errorf("listen on %s: %w", w.Listen, err)
	}
	if err != nil {
		return nil, settings.Invalid("WEBLISTEN", "cannot be used", err)
	}
	return ln, nil
}

// handshakes returns the settings of TLS for a certificate, nil without one. A renewed certificate is used
// from the next connection on.
func handshakes(certs *listen.Certificates) *tls.Config {
	if certs == nil {
		return nil
	}
	current := func(*tls.ClientHelloInfo) (*tls.Config, error) {
		c := certs.Config().Clone()
		c.NextProtos = []string{"http/1.1"}
		return c, nil
	}
	return &tls.Config{GetConfigForClient: current, MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}}
}
