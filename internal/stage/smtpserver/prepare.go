package smtpserver

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"runtime/debug"
	"strings"
	"time"
)

const (
	// lookupTimeout is how long the lookup of a client's name may take in all.
	lookupTimeout = 5 * time.Second
	// maxNames is how many names of a client are verified.
	maxNames = 3
)

// prepares tells a connection that something has to be waited for before the greeting.
// Accepting goes on meanwhile.
func (s *server) prepares(w *wire) bool {
	return w.client.role == RoleSubmissions || s.ReverseLookup || inNets(s.ProxyNets, w.client.addr)
}

// prepare does what has to be waited for, then gives the connection to go-smtp.
func (s *server) prepare(w *wire) {
	defer func() {
		if r := recover(); r != nil {
			s.Log.Error("smtp-trouble", "text", fmt.Sprintf("panic serving %v: %v\n%s", w.RemoteAddr(), r, debug.Stack()))
			_ = w.Close()
		}
	}()
	if inNets(s.ProxyNets, w.client.addr) {
		if err := w.readProxy(); err != nil {
			_ = w.Close() // whatever it is, it does not await a greeting
			return
		}
	}
	if !s.counts(w) {
		return
	}
	if s.ReverseLookup && w.client.addr.IsValid() && !w.client.addr.Addr().IsUnspecified() {
		ctx, cancel := context.WithTimeout(s.ctx, lookupTimeout)
		w.client.name = s.hostName(ctx, w.client.addr.Addr())
		cancel()
	}
	if w.client.role == RoleSubmissions {
		if err := w.secure(); err != nil {
			_ = w.Close() // nothing could be told
			return
		}
	}
	if s.admits(w) && !w.entrance.enter(w) {
		_ = w.Close() // the server is stopping
	}
}

// admits decides on a connection whose client is known, before the greeting. One that
// is not admitted is told why and closed (RFC 5321 §3.1 allows 421 and 554 in place of
// the greeting).
func (s *server) admits(w *wire) bool {
	return s.counts(w)
}

// hostName is a client's name: one that its address leads to and that leads back to
// it. "": there is none, or nobody tells in time.
func (s *server) hostName(ctx context.Context, addr netip.Addr) string {
	addr = addr.Unmap().WithZone("")
	r := &net.Resolver{PreferGo: true}
	if s.Resolver != "" {
		r.Dial = func(ctx context.Context, network, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, network, s.Resolver)
		}
	}
	names, err := r.LookupAddr(ctx, addr.String())
	if err != nil {
		return ""
	}
	for _, name := range names[:min(len(names), maxNames)] {
		back, err := r.LookupNetIP(ctx, "ip", name)
		if err != nil {
			continue
		}
		for _, b := range back {
			if b.Unmap() == addr {
				return strings.TrimSuffix(name, ".")
			}
		}
	}
	return ""
}
