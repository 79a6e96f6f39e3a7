package peer

import (
	"net"
	"sync"
)

// Proxy passes bytes between clients and one server, and does to the server's answers what a
// failing network or machine does: they end in the middle, or do not arrive.
type Proxy struct {
	l               net.Listener
	network, server string

	mu     sync.Mutex
	change *sync.Cond
	held   bool
	closed bool
	left   int64 // bytes of answers until a connection is cut; negative: it is not
	passed int64 // bytes of answers
	conns  map[net.Conn]struct{}
	all    sync.WaitGroup
}

// NewProxy listens on an address for a server at another one of the same network.
func NewProxy(network, listen, server string) (*Proxy, error) {
	l, err := net.Listen(network, listen)
	if err != nil {
		return nil, err
	}
	p := &Proxy{l: l, network: network, server: server, left: -1, conns: map[net.Conn]struct{}{}}
	p.change = sync.NewCond(&p.mu)
	p.all.Go(p.accept)
	return p, nil
}

// Addr returns where it listens.
func (p *Proxy) Addr() string { return p.l.Addr().String() }

// Hold keeps all answers back until Pass.
func (p *Proxy) Hold() { p.set(true, -1) }

// Cut passes n more bytes of answers, and then ends the connection that has more. The
// connections after that one are not touched.
func (p *Proxy) Cut(n int64) { p.set(false, n) }

// Pass passes everything.
func (p *Proxy) Pass() { p.set(false, -1) }

func (p *Proxy) set(held bool, left int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.held, p.left = held, left
	p.change.Broadcast()
}

// Passed returns how many bytes of answers were passed so far.
func (p *Proxy) Passed() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.passed
}

// Close ends it with all its connections.
func (p *Proxy) Close() {
	p.l.Close()
	p.mu.Lock()
	p.closed = true
	for c := range p.conns {
		c.Close()
	}
	p.change.Broadcast()
	p.mu.Unlock()
	p.all.Wait()
}

func (p *Proxy) accept() {
	for {
		c, err := p.l.Accept()
		if err != nil {
			return
		}
		p.all.Go(func() {
			defer p.forget(c)
			s, err := net.Dial(p.network, p.server)
			if err != nil {
				return // as a server that is down
			}
			defer p.forget(s)
			if !p.keep(c, s) {
				return
			}
			p.all.Go(func() {
				defer s.Close()
				b := make([]byte, 32<<10)
				for {
					n, err := c.Read(b)
					if _, werr := s.Write(b[:n]); err != nil || werr != nil {
						return
					}
				}
			})
			p.answers(c, s)
		})
	}
}

func (p *Proxy) keep(conns ...net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range conns {
		p.conns[c] = struct{}{}
	}
	return !p.closed
}

func (p *Proxy) forget(c net.Conn) {
	c.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, c)
}

// answers passes what a server sends until the end of either side or of the budget.
func (p *Proxy) answers(c, s net.Conn) {
	b := make([]byte, 32<<10)
	for {
		n, err := s.Read(b)
		if err != nil {
			return
		}
		pass, cut := p.admit(n)
		if _, err := c.Write(b[:pass]); err != nil || cut {
			return
		}
	}
}

// admit returns how many of n bytes pass now, and whether the connection ends behind them.
func (p *Proxy) admit(n int) (pass int, cut bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.held && !p.closed {
		p.change.Wait()
	}
	switch {
	case p.closed:
		return 0, true
	case p.left >= 0 && int64(n) > p.left:
		n, cut, p.left = int(p.left), true, -1
	case p.left >= 0:
		p.left -= int64(n)
	}
	p.passed += int64(n)
	return n, cut
}
