package tasmtp

import (
	"slices"
	"sync"
	"time"
)

// keepPerSlot bounds the connections that are kept in all, per slot: an agent that
// serves many hosts one after the other must not gather descriptors.
const keepPerSlot = 8

// poolKey is whom a connection serves. The channel counts: another one may mean
// another protocol.
type poolKey struct {
	channel, host string
	from          origin // of the message; a link serves from its own source
}

// same tells a key of the same channel and host.
func (k poolKey) same(as poolKey) bool { return k.channel == as.channel && k.host == as.host }

// pool keeps idle connections for the next message.
type pool struct {
	idle    time.Duration
	perHost int
	max     int

	mu     sync.Mutex
	kept   []*link // those kept first stand first
	closed bool
	leave  sync.WaitGroup // connections that take leave
}

func newPool(idle time.Duration, slots int) *pool {
	return &pool{idle: idle, perHost: slots, max: slots * keepPerSlot}
}

// take gives the connection to a host, from a source of the key, that was used last,
// nil if there is none. A
// server that drops idle connections has dropped the others first.
func (p *pool) take(key poolKey) *link {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, l := range slices.Backward(p.kept) {
		if l.key.same(key) && key.from.has(l.source) {
			p.kept = slices.Delete(p.kept, i, i+1)
			l.timer.Stop()
			return l
		}
	}
	return nil
}

// keep takes a connection that serves for another message. Where there are too
// many, the one that was idle longest goes.
func (p *pool) keep(l *link) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || p.idle <= 0 {
		p.dismiss(l)
		return
	}
	same, oldest := 0, 0
	for i, k := range slices.Backward(p.kept) {
		if k.key.same(l.key) && k.source == l.source {
			same, oldest = same+1, i
		}
	}
	switch {
	case same >= p.perHost:
		p.drop(oldest)
	case len(p.kept) >= p.max:
		p.drop(0)
	}
	if l.timer == nil {
		l.timer = time.AfterFunc(p.idle, func() { p.expire(l) })
	} else {
		l.timer.Reset(p.idle)
	}
	p.kept = append(p.kept, l)
}

// expire ends a connection whose idle time is over, if nobody has taken it.
func (p *pool) expire(l *link) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if i := slices.Index(p.kept, l); i >= 0 {
		p.drop(i)
	}
}

func (p *pool) drop(i int) {
	l := p.kept[i]
	l.timer.Stop()
	p.kept = slices.Delete(p.kept, i, i+1)
	p.dismiss(l)
}

// dismiss takes leave while others go on.
func (p *pool) dismiss(l *link) {
	p.leave.Go(func() { l.conn.Quit() })
}

// close dismisses all and waits for them.
func (p *pool) close() {
	p.mu.Lock()
	p.closed = true
	for len(p.kept) > 0 {
		p.drop(len(p.kept) - 1)
	}
	p.mu.Unlock()
	p.leave.Wait()
}
