package tasmtp

import (
	"slices"
	"sync"
	"time"
)

const (
	// keepPerSlot bounds the idle connections that are kept in all, per slot: an agent
	// that serves many hosts one after the other must not gather descriptors.
	keepPerSlot = 8
	// maxAge and maxUses bound how long a connection takes more messages, so that a change of
	// DNS or routes takes effect in steady traffic.
	maxAge  = 5 * time.Minute
	maxUses = 1000
	// slowTime is how long a host gets its commands one at a time that has fallen silent
	// when it got several.
	slowTime = time.Hour
	// maxHosts bounds how many hosts are remembered.
	maxHosts = 1000
)

// poolKey identifies the messages that a connection serves. The channel is part of it:
// another one may mean another protocol.
type poolKey struct {
	channel, host string
	from          origin // of the message; a link serves from its own source
	terms         terms  // TLS and login that the message asks for
}

// same reports whether two keys have the same channel, host and terms.
func (k poolKey) same(as poolKey) bool {
	return k.channel == as.channel && k.host == as.host && k.terms == as.terms
}

// pool has the open connections, each for one message at a time; the idle ones are kept
// for the next. docs/delivery.md explains when another one is opened.
type pool struct {
	idle    time.Duration
	perHost int // connections at most
	max     int // idle ones at most
	now     func() time.Time

	mu      sync.Mutex
	links   []*link               // the idle ones in the order in which they were kept
	opening map[poolKey]int       // connections that are being opened
	slowly  map[poolKey]time.Time // hosts that get one command at a time, until then
	changed chan struct{}         // closed and replaced when a link is idle, or is gone
	closed  bool
	leave   sync.WaitGroup // connections that send QUIT
}

// pooled is what the pool knows of a link.
type pooled struct {
	used   bool        // a message is on it
	uses   int         // messages in all
	opened time.Time   // when it was
	timer  *time.Timer // of its idle time, set when it was kept once
}

// request asks for a connection.
type request struct {
	key   poolKey
	since time.Time                // a connection that is older does not serve; zero: any does
	open  func() (*link, *refusal) // opens one
}

func newPool(idle time.Duration, slots, perHost int) *pool {
	return &pool{idle: idle, perHost: perHost, max: slots * keepPerSlot, now: time.Now,
		opening: map[poolKey]int{}, slowly: map[poolKey]time.Time{}, changed: make(chan struct{})}
}

// get finds a connection: an idle one, or a new one. Where there are as many as there may
// be it waits for one of them.
func (p *pool) get(e request) (*link, *refusal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		if l := p.choose(&e); l != nil {
			p.use(l)
			return l, nil
		}
		if p.count(e.key) < p.perHost || p.evict(&e) {
			return p.add(&e)
		}
		p.await()
	}
}

// join finds an idle connection, nil if there is none.
func (p *pool) join(e request) *link {
	p.mu.Lock()
	defer p.mu.Unlock()
	l := p.choose(&e)
	if l != nil {
		p.use(l)
	}
	return l
}

// choose returns the idle connection that was used last, since a server that drops idle
// connections has dropped the others first.
func (p *pool) choose(e *request) *link {
	for _, l := range slices.Backward(p.links) {
		if !l.used && p.serves(l, e) {
			return l
		}
	}
	return nil
}

// serves reports whether a link serves a request, now or later.
func (p *pool) serves(l *link, e *request) bool {
	return l.key.same(e.key) && e.key.from.has(l.source) && l.conn.Usable() &&
		!l.opened.Before(e.since) && l.uses < maxUses && p.now().Sub(l.opened) < maxAge
}

// use puts a message on a link.
func (p *pool) use(l *link) {
	if l.timer != nil {
		l.timer.Stop()
	}
	l.used = true
	l.uses++
}

// evict closes an idle connection that is too old for a request.
func (p *pool) evict(e *request) bool {
	for i, l := range p.links {
		if !l.used && l.key.same(e.key) && e.key.from.has(l.source) && !p.serves(l, e) {
			p.drop(i)
			return true
		}
	}
	return false
}

// count returns how many connections to a host, from the same sources, there are and will be.
func (p *pool) count(key poolKey) int {
	n := p.opening[key]
	for _, l := range p.links {
		if l.key.same(key) && key.from.has(l.source) && l.conn.Usable() {
			n++
		}
	}
	return n
}

// add opens a connection.
func (p *pool) add(e *request) (*link, *refusal) {
	p.opening[e.key]++
	defer func() { // also in a panic
		if p.opening[e.key]--; p.opening[e.key] == 0 {
			delete(p.opening, e.key)
		}
		p.change()
	}()
	l, why := p.unlocked(e.open)
	if l == nil {
		return nil, why
	}
	l.opened = p.now()
	p.links = append(p.links, l)
	p.use(l)
	return l, nil
}

// unlocked opens a connection while others use the pool.
func (p *pool) unlocked(open func() (*link, *refusal)) (*link, *refusal) {
	p.mu.Unlock()
	defer p.mu.Lock()
	return open()
}

// await waits for a change.
func (p *pool) await() {
	changed := p.changed
	p.mu.Unlock()
	defer p.mu.Lock()
	<-changed
}

// change wakes all waiters.
func (p *pool) change() {
	close(p.changed)
	p.changed = make(chan struct{})
}

// release takes a link back that a message has used. An idle one is kept; where there are
// too many, the one that was idle longest goes.
func (p *pool) release(l *link) {
	p.mu.Lock()
	defer p.mu.Unlock()
	defer p.change()
	l.used = false
	i := slices.Index(p.links, l)
	if !l.conn.Usable() {
		p.links = slices.Delete(p.links, i, i+1)
		l.conn.Close()
		return
	}
	if p.closed || p.idle <= 0 || l.uses >= maxUses || p.now().Sub(l.opened) >= maxAge {
		p.drop(i)
		return
	}
	// The one used last is last in the list.
	p.links = append(slices.Delete(p.links, i, i+1), l)
	if kept, oldest := p.idlers(); kept > p.max {
		p.drop(oldest)
	}
	if l.timer == nil {
		l.timer = time.AfterFunc(p.idle, func() { p.expire(l) })
	} else {
		l.timer.Reset(p.idle)
	}
}

// idlers counts the idle connections and finds the one that has been so for longest.
func (p *pool) idlers() (n, oldest int) {
	for i, l := range slices.Backward(p.links) {
		if !l.used {
			n, oldest = n+1, i
		}
	}
	return n, oldest
}

// slow makes a host get its commands one at a time for a while.
func (p *pool) slow(key poolKey) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.slowly) >= maxHosts {
		clear(p.slowly)
	}
	p.slowly[hostOf(key)] = p.now().Add(slowTime)
}

// isSlow reports whether a host is to get its commands one at a time.
func (p *pool) isSlow(key poolKey) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	until, ok := p.slowly[hostOf(key)]
	if ok && !p.now().Before(until) {
		delete(p.slowly, hostOf(key))
		ok = false
	}
	return ok
}

// hostOf returns a key without source and terms: facts about a server remain true when the
// files tls and credentials are read again.
func hostOf(key poolKey) poolKey { return poolKey{channel: key.channel, host: key.host} }

// expire ends a connection whose idle time is over, if no message uses it.
func (p *pool) expire(l *link) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if i := slices.Index(p.links, l); i >= 0 && !l.used {
		p.drop(i)
		p.change()
	}
}

// drop closes an idle link in the background.
func (p *pool) drop(i int) {
	l := p.links[i]
	if l.timer != nil {
		l.timer.Stop()
	}
	p.links = slices.Delete(p.links, i, i+1)
	p.leave.Go(func() { l.conn.Quit() })
}

// close closes all links and waits for them. None may be in use.
func (p *pool) close() {
	p.mu.Lock()
	p.closed = true
	for len(p.links) > 0 {
		p.drop(len(p.links) - 1)
	}
	p.mu.Unlock()
	p.leave.Wait()
}
