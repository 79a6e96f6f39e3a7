package smtpserver

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"runtime/debug"
	"slices"
	"time"

	"zmailer/internal/stage/smtpserver/listen"
	"zmailer/internal/stage/smtpserver/session"
)

// lookupTimeout is how long the lookup of a client's name may take in all.
const lookupTimeout = 5 * time.Second

// connection is a client's connection as the server counts it.
type connection struct {
	*session.Conn
	role    session.Role
	uncount func() // ends the count of its address; may be nil
	place   place
}

// newProtocol makes the session server of a role.
func (s *server) newProtocol(role session.Role) *session.Server {
	c := session.Config{
		Role: role, Hostname: s.Hostname, MaxSize: s.Limits.MaxSize, MaxRecipients: s.Limits.MaxRecipients,
		ReadTimeout: s.ReadTimeout, WriteTimeout: s.WriteTimeout, MinRate: s.MinRate,
		TLSTimeout: s.TLSTimeout, XClientNets: s.XClientNets, Log: s.Log, Open: s.newHandler,
		Answered: func(code int) { s.meters.recipient(role, code) },
	}
	if c.XForwardNets = s.XForwardNets; role == session.RoleReinject {
		c.XForwardNets = slices.Concat(s.XForwardNets, s.ReinjectNets)
	}
	if s.certs != nil {
		c.TLS = func() *tls.Config { return s.certs.Config() }
	}
	return session.New(c)
}

// newConnection makes a connection and counts it; nil: there is no place for it, or we are
// stopping. retired: it is for the server that has taken this one's place.
func (s *server) newConnection(c net.Conn, p *session.Server) (_ *connection, retired bool) {
	n := &connection{role: p.Role} // not the result: that would be allocated for the closures
	n.Conn = p.NewConn(c, func() { s.closed(n) })
	n.OnLogin(func() { s.isOurs(n) })
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.retired {
		return nil, true
	}
	if s.stopping || !s.takePlace(n) {
		return nil, false
	}
	s.connections[n] = struct{}{}
	s.open++
	s.meters.connections.With(string(p.Role)).Add(1)
	return n, false
}

// closed ends the count of a connection.
func (s *server) closed(c *connection) {
	if c.uncount != nil {
		c.uncount()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.connections[c]; ok {
		delete(s.connections, c)
		s.open--
		s.closeIfUnused()
	}
	s.leavePlace(c)
	s.endIfIdle()
}

// accept serves a connection that a listener has accepted. It does not block: if something
// has to be waited for before the greeting, another goroutine does. False: the connection is for
// the server that has taken this one's place.
func (s *server) accept(nc net.Conn, role session.Role) bool {
	p := s.protocols[role]
	c, retired := s.newConnection(nc, p)
	if retired {
		return false
	}
	if c == nil {
		s.refuseConnection(nc, p.Role)
		return true
	}
	if p.Role == session.RoleSubmissions || s.ReverseLookup || s.mayTest(p.Role) || session.Contains(s.ProxyNets, c.Client().Addr.Addr()) {
		go s.prepare(c)
		return true
	}
	if s.admit(c) {
		s.workers.serve(c, s.ctx.Done())
	}
	return true
}

// refuseConnection answers a connection above SMTPCONNECTIONS.
func (s *server) refuseConnection(c net.Conn, role session.Role) {
	s.meters.turnedAway.With(string(role)).Add(1)
	s.flood.Warn("refused", "client", c.RemoteAddr().String(), "stage", stageConnect, "code", 421, "status", "4.3.2", "reply", "too many connections")
	if role != session.RoleSubmissions {
		// The line fits into an empty socket's buffer; a client that is gone is refused
		// either way.
		_, _ = c.Write([]byte("421 4.3.2 " + s.Hostname + " Error: too many connections\r\n"))
	}
	_ = c.Close()
}

// prepare reads the PROXY header, looks up the client's name and begins TLS, where that is
// due before the greeting.
func (s *server) prepare(c *connection) {
	defer func() {
		if r := recover(); r != nil {
			s.Log.Error("smtp-trouble", "text", fmt.Sprintf("panic serving %v: %v\n%s", c.RemoteAddr(), r, debug.Stack()))
			c.Close()
		}
	}()
	if session.Contains(s.ProxyNets, c.Client().Addr.Addr()) {
		if err := s.readProxy(c); err != nil {
			c.Close() // what does not speak PROXY does not await a greeting
			return
		}
	}
	if !s.admit(c) {
		return
	}
	if addr := c.Client().Addr; s.ReverseLookup && addr.IsValid() && !addr.Addr().IsUnspecified() {
		ctx, cancel := context.WithTimeout(s.ctx, lookupTimeout)
		c.SetName(listen.HostName(ctx, s.Resolver, addr.Addr()))
		cancel()
	}
	if c.Client().Role == session.RoleSubmissions {
		if err := c.Secure(); err != nil {
			c.Close() // no reply can be read
			return
		}
	}
	if s.admit(c) && s.waits(c) {
		c.Serve()
	}
}

// readProxy takes the client's address from a PROXY header, and logs if there is none.
func (s *server) readProxy(c *connection) error {
	raw, err := c.Raw(listen.ProxyTimeout)
	if err != nil {
		return err
	}
	addr, err := listen.ReadProxy(raw, c.Client().Addr)
	if err != nil {
		s.Log.Warn("proxy-refused", "client", c.Client().String(), "reason", err,
			"advice", "connections from PROXYNETS have to begin with a PROXY header")
		return err
	}
	c.SetAddr(addr)
	s.named(c)
	return nil
}

// stop ends the connections: those without a transaction now, the others as their
// transactions end, all when StopTimeout is over: with 421 those that wait for their clients.
func (s *server) stop() error {
	s.mu.Lock()
	s.stopping = true
	for c := range s.connections {
		c.Stop()
	}
	s.endIfIdle()
	s.mu.Unlock()
	select {
	case <-s.idle:
		return nil
	case <-time.After(s.StopTimeout):
	}
	s.mu.Lock()
	s.Log.Warn("cut", "connections", len(s.connections), "after", s.StopTimeout)
	for c := range s.connections {
		c.Evict()
	}
	s.cancel()
	s.mu.Unlock()
	select {
	case <-s.idle:
		return nil
	case <-time.After(lastReplyTime):
	}
	s.mu.Lock()
	for c := range s.connections {
		c.Cut()
	}
	s.mu.Unlock()
	select {
	case <-s.idle:
		return nil
	case <-time.After(killGrace):
		return fmt.Errorf("stop: connections are still busy %v after they were cut", killGrace)
	}
}

// endIfIdle closes s.idle when the last connection is gone. s.mu is held.
func (s *server) endIfIdle() {
	if s.stopping && !s.ended && len(s.connections) == 0 {
		s.ended = true
		close(s.idle)
	}
}
