package query

import (
	"net"
	"slices"
	"sync"
)

// places are the clients of one socket. One that is too many takes the place of the
// client that has waited the longest for nothing but its own next request. Clients with all
// rights by their uid, which are the administrator's on this machine, always get in and make
// room for none but each other.
type places struct {
	mu   sync.Mutex
	list []*session // the one that came first is first
}

// admit takes a client in; dropped is who had to go for it. ok is false if there is no room.
func (p *places) admit(s *session) (dropped *session, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.list) >= maxClients {
		if dropped = p.victim(s.trusted); dropped == nil {
			return nil, false
		}
		p.remove(dropped)
	}
	p.list = append(p.list, s)
	return dropped, true
}

// victim returns the client that makes room, nil if none does: an idle one without rights;
// for a trusted client also a busy one, then an idle and last a busy trusted one. Among
// equals it is the one that is idle the longest, or has come first.
func (p *places) victim(trusted bool) (found *session) {
	class, since := 0, int64(0)
	for _, s := range p.list {
		idle := s.idle.Load()
		c := 0
		if s.trusted {
			c += 2
		}
		if idle == 0 {
			c++
		}
		if c > 0 && !trusted {
			continue
		}
		if found == nil || c < class || c == class && idle < since {
			found, class, since = s, c, idle
		}
	}
	return found
}

// leave notes that a client has gone.
func (p *places) leave(s *session) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.remove(s)
}

func (p *places) remove(s *session) {
	p.list = slices.DeleteFunc(p.list, func(x *session) bool { return x == s })
}

// receive serves a client that has connected to a socket, if there is room.
func (q *Server) receive(p *places, conn net.Conn) {
	s := newSession(q, conn)
	dropped, ok := p.admit(s)
	if !ok {
		_ = conn.Close() // all are busy
		return
	}
	if dropped != nil {
		q.Log.Info("query-dropped", "client", dropped.who, "for", s.who)
		// Its goroutine ends with its connection.
		_ = dropped.conn.Close()
	}
	q.serving.Go(func() {
		defer p.leave(s)
		s.run()
	})
}
