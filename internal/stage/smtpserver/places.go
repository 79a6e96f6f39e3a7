package smtpserver

import (
	"net/netip"
	"time"

	"zmailer/internal/stage/smtpserver/policy/limits"
	"zmailer/internal/stage/smtpserver/session"
)

// leastIdle is how long a connection must have made no progress before another one of the
// same address, or of one with as many connections, gets its place.
const leastIdle = 3 * time.Second

// places are the connections under SMTPCONNECTIONS. A fifth is for clients of ours: those
// that have authenticated, of LIMITSEXEMPT, and on Unix sockets; the others are public.
// server.mu guards all of it.
type places struct {
	public  int                  // public connections
	evicted int                  // connections that are being closed and have no place any more
	scarce  bool                 // public clients have short time limits
	held    map[netip.Prefix]int // public connections of each network
}

// place is what a connection occupies.
type place struct {
	public  bool
	evicted bool
	addr    netip.AddrPort // of the client, as a proxy names it
	net     netip.Prefix   // the network that it is counted as
}

func (p *place) setAddr(a netip.AddrPort) { p.addr, p.net = a, limits.Network(a.Addr()) }

// count begins to count a public connection.
func (p *places) count(c *place) {
	if p.held == nil {
		p.held = map[netip.Prefix]int{}
	}
	c.public = true
	p.public++
	p.held[c.net]++
}

// uncount ends that.
func (p *places) uncount(c *place) {
	c.public = false
	p.public--
	if p.held[c.net]--; p.held[c.net] == 0 {
		delete(p.held, c.net)
	}
}

// publicPlaces returns how many public connections there may be; 0: any number.
func (s *server) publicPlaces() int { return s.Limits.MaxConnections - s.Limits.MaxConnections/5 }

// isPublic reports whether any host may have made the connection. The client of a proxy is
// not known yet.
func (s *server) isPublic(addr netip.Addr) bool {
	return !s.limits.Exempt(addr) || session.Contains(s.ProxyNets, addr)
}

// takePlace gives a new connection a place, if need be that of a public connection. It
// reports false if there is none. s.mu is held.
func (s *server) takePlace(n *connection) bool {
	n.place.setAddr(n.Client().Addr)
	public := s.isPublic(n.place.addr.Addr())
	if most := s.Limits.MaxConnections; most > 0 {
		full := len(s.connections)-s.places.evicted >= most
		if public && s.places.public >= s.publicPlaces() {
			full = true
		}
		if full && !s.evictFor(n, public) {
			return false
		}
	}
	if !public {
		n.Trust()
		return true
	}
	s.places.count(&n.place)
	s.adjustTimes()
	if s.places.scarce {
		n.Press(true)
	}
	return true
}

// leavePlace ends the count of a connection. s.mu is held.
func (s *server) leavePlace(c *connection) {
	if c.place.evicted {
		s.places.evicted--
	}
	if c.place.public {
		s.places.uncount(&c.place)
		s.adjustTimes()
	}
}

// isOurs ends a connection's being public: its client has authenticated.
func (s *server) isOurs(c *connection) {
	c.Trust()
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.place.public {
		s.places.uncount(&c.place)
		c.Press(false)
		s.adjustTimes()
	}
}

// named notes the address that a proxy has given.
func (s *server) named(c *connection) {
	addr := c.Client().Addr
	s.mu.Lock()
	if c.place.public {
		s.places.uncount(&c.place)
		c.place.setAddr(addr)
		s.places.count(&c.place)
	}
	s.mu.Unlock()
	if !s.isPublic(addr.Addr()) {
		s.isOurs(c)
	}
}

// adjustTimes makes the time limits of public clients short while more than three quarters
// of the public places are taken, until half of them are free. s.mu is held.
func (s *server) adjustTimes() {
	all, p := s.publicPlaces(), &s.places
	scarce := p.scarce
	switch {
	case s.Limits.MaxConnections <= 0, s.stopping:
	case p.public > all*3/4:
		scarce = true
	case p.public <= all/2:
		scarce = false
	}
	if scarce == p.scarce {
		return
	}
	p.scarce = scarce
	for c := range s.connections {
		if c.place.public {
			c.Press(scarce)
		}
	}
	if scarce {
		s.Log.Warn("connections-scarce", "public", p.public, "of", all,
			"advice", "idle clients are disconnected early; if these are no attackers, raise SMTPCONNECTIONS")
	} else {
		s.Log.Info("connections-recovered", "public", p.public, "of", all)
	}
}

// evictFor closes a public connection whose place a new connection gets, and reports whether
// there was one. s.mu is held.
func (s *server) evictFor(n *connection, public bool) bool {
	if public && s.places.evicted > s.Limits.MaxConnections/5 {
		return false // too many are still being closed
	}
	now := time.Now()
	c := s.leastWanted(n, public, now)
	if c == nil {
		return false
	}
	since, busy := c.Idle()
	c.Evict()
	s.places.uncount(&c.place)
	c.place.evicted = true
	s.places.evicted++
	s.meters.evicted.With(string(c.role)).Add(1)
	s.flood.Info("evicted", "client", c.place.addr.String(), "idle", now.Sub(since), "transaction", busy)
	return true
}

// leastWanted returns the public connection that gives its place to a new one; nil: none.
// Those that are idle are the first, then those without a transaction, then the others; of
// these those of the address with the most connections, and of these the one that has made no
// progress for longest. One that is not idle gives its place to a client of ours, or to an
// address that has less than half as many connections: those of an attacker would take turns
// otherwise. public is what the new one is.
func (s *server) leastWanted(n *connection, public bool, now time.Time) (worst *connection) {
	own := s.places.held[n.place.net]
	var worstRank, worstHeld int
	var worstSince time.Time
	for c := range s.connections {
		if !c.place.public {
			continue
		}
		since, busy := c.Idle()
		rank, many := 2, s.places.held[c.place.net]
		switch {
		case busy:
			rank = 0
		case now.Sub(since) < leastIdle:
			rank = 1
		}
		if rank < 2 && public && many <= 2*own+1 {
			continue
		}
		if worst != nil {
			switch {
			case rank != worstRank:
				if rank < worstRank {
					continue
				}
			case many != worstHeld:
				if many < worstHeld {
					continue
				}
			case !since.Before(worstSince):
				continue
			}
		}
		worst, worstRank, worstHeld, worstSince = c, rank, many, since
	}
	return worst
}
