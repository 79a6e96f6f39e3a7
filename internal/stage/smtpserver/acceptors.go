package smtpserver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"zmailer/internal/run/ports"
	"zmailer/internal/stage/smtpserver/listen"
)

// acceptors accept connections on the open addresses for the server of now.
type acceptors struct {
	current   atomic.Pointer[server]
	listeners []*listen.Listener
	liveness  atomic.Pointer[listen.Liveness]
	failed    chan error // of a listener that cannot go on
	running   sync.WaitGroup
	rates     rateAnswers
}

// acceptOn begins to accept on the listeners of a server.
func (s *server) acceptOn(listeners []*listen.Listener) *acceptors {
	a := &acceptors{failed: make(chan error, 1)}
	a.current.Store(s)
	a.rates.acceptors = a
	a.rates.serve()
	a.add(listeners, listeners)
	return a
}

// add accepts on opened from now on; all are the listeners with those that were there.
func (a *acceptors) add(all, opened []*listen.Listener) {
	a.listeners = all
	// The watchdog's check asks all listeners, and none that is closed.
	s := a.current.Load()
	a.liveness.Store(listen.NewLiveness(all, s.Service.Alive))
	for _, l := range opened {
		a.running.Go(func() {
			if err := l.Serve(func(c net.Conn) { a.accept(c, l) }); !errors.Is(err, net.ErrClosed) {
				select {
				case a.failed <- fmt.Errorf("accept on %s: %w", l.Addr(), err):
				default: // another one ends the server
				}
			}
		})
		s.Log.Info("listening", "address", l.Addr().String(), "role", string(l.Role), "postoffice", s.PostOffice)
	}
}

func (a *acceptors) accept(c net.Conn, l *listen.Listener) {
	for !a.current.Load().accept(c, l.Role) { // it was retired meanwhile
	}
}

// close closes listeners when the connections that wait there have been accepted.
func (a *acceptors) close(closed []*listen.Listener) {
	for _, l := range closed {
		ports.Drain(l.Listener, func(c net.Conn) { a.accept(c, l) })
		// Nothing is lost by closing a listener; its Serve returns whatever Close returns.
		_ = l.Close()
		a.current.Load().Log.Info("not-listening", "address", l.Addr().String(), "role", string(l.Role))
	}
}

// stop closes all listeners; connections that wait there are reset, as the server ends.
func (a *acceptors) stop() {
	_ = listen.CloseAll(a.listeners)
	a.rates.stop()
	a.running.Wait()
}

// check is the watchdog's.
func (a *acceptors) check() { a.liveness.Load().Check() }

// addrs returns the addresses, and their description.
func (a *acceptors) addrs() (addrs []net.Addr, text string) {
	names := make([]string, 0, len(a.listeners))
	for _, l := range a.listeners {
		addrs = append(addrs, l.Addr())
		names = append(names, l.Addr().String()+" ("+string(l.Role)+")")
	}
	return addrs, strings.Join(names, ", ")
}

// reload has connections that come from now on served by the settings as they are in zmailer.conf
// now, on its addresses. Settings that cannot be used change nothing.
func (a *acceptors) reload(ctx context.Context) {
	old := a.current.Load()
	c, err := old.Reread()
	var l loaded
	var all, opened []*listen.Listener
	var waiting []string
	if err == nil {
		c.keep(&old.Config)
		c.setDefaults()
		all, opened, waiting, err = listen.Change(ctx, a.listeners, c.ports(), c.Privileged, c.Log)
	}
	if err == nil {
		if l, err = c.open(old.po); err != nil {
			err = errors.Join(err, listen.CloseAll(opened))
		}
	}
	if err != nil {
		old.Follow.Refuse(err)
		return
	}
	next := old.server(c, l, old.limits.With(c.Limits.Config))
	a.current.Store(next)
	a.rates.serve()
	old.retire()
	closed := slices.DeleteFunc(slices.Clone(a.listeners), func(l *listen.Listener) bool { return slices.Contains(all, l) })
	a.add(all, opened)
	a.close(closed)
	if len(opened)+len(closed) > 0 {
		_, text := a.addrs()
		next.Service.Ready("serves %s", text)
	}
	next.Log.Info("conf-read", next.Follow.Accept(waiting...)...)
}
