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
	// maxAge and maxUses are how long a connection takes more messages: whoever changes
	// where mail goes must not wait for the end of the traffic.
	maxAge  = 5 * time.Minute
	maxUses = 1000
	// single is how long a host gets its messages one after the other on a connection
	// that broke with several on the way, or does not know what it offers.
	single = time.Hour
	// maxHosts bounds how many hosts are remembered.
	maxHosts = 1000
)

// poolKey is whom a connection serves. The channel counts: another one may mean
// another protocol.
type poolKey struct {
	channel, host string
	from          origin // of the message; a link serves from its own source
	terms         terms  // TLS and login that the message asks for
}

// same tells a key of the same channel, host and terms.
func (k poolKey) same(as poolKey) bool {
	return k.channel == as.channel && k.host == as.host && k.terms == as.terms
}

// pool has the open connections: messages to a host share them, and the idle ones are
// kept for the next. docs/delivery.md says when another one is opened.
type pool struct {
	idle    time.Duration
	perHost int // connections at most
	max     int // idle ones at most
	window  int // messages on the way on one, at most; 0: the usual
	now     func() time.Time

	mu      sync.Mutex
	links   []*link // of those that are idle, the ones kept first stand first
	opening []*opening
	large   map[poolKey]int       // messages that wait for a connection of their own
	known   map[poolKey]int       // messages at once that a host's last connection took
	single  map[poolKey]time.Time // hosts that get one message at a time, until then
	changed chan struct{}         // closed and replaced when a link has room, or is gone
	closed  bool
	leave   sync.WaitGroup // connections that take leave
}

// lease is what the pool knows of a link.
type lease struct {
	users, uses   int           // messages on it now, and in all
	hoping        int           // messages that wait for its first one to be answered
	alone         bool          // a message is on it that takes no others beside it
	opened, began time.Time     // when it was, and when its oldest use of now was
	took          time.Duration // to open it
	timer         *time.Timer   // of its idle time, set when it was kept once
}

// opening is a connection that is being opened.
type opening struct {
	key   poolKey
	wait  int // messages that hope for it, beside the one that opens it
	ended bool
	why   *refusal // of all of them, if there will be no connection
}

// errand is what a connection is wanted for.
type errand struct {
	key   poolKey
	small bool                     // it may share a connection
	since time.Time                // a connection that is older does not serve; zero: any does
	open  func() (*link, *refusal) // opens one
}

func newPool(idle time.Duration, slots, perHost, window int) *pool {
	return &pool{idle: idle, perHost: perHost, max: slots * keepPerSlot, window: window, now: time.Now,
		large: map[poolKey]int{}, known: map[poolKey]int{}, single: map[poolKey]time.Time{}, changed: make(chan struct{})}
}

// get finds a connection: an idle one, one with room, one that will soon have room, a new
// one. Where there are as many as there may be it waits for one of them.
func (p *pool) get(e errand) (*link, *refusal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	patient, waits := e.small, false
	seated := func() {
		if waits {
			waits = false
			p.letPass(e.key)
		}
	}
	defer seated()
	for {
		if l := p.choose(&e); l != nil {
			p.use(l, &e)
			return l, nil
		}
		if patient {
			if o := p.hope(&e); o != nil {
				if p.await(o, nil); o.why != nil {
					return nil, o.why
				}
				continue
			}
			if l := p.proving(&e); l != nil {
				l.hoping++
				patient = p.await(nil, l)
				l.hoping--
				continue
			}
		}
		if p.count(e.key) < p.perHost || p.evict(&e) {
			seated()
			return p.add(&e)
		}
		if !e.small && !waits {
			// It has the next one that is idle.
			waits = true
			p.large[e.key]++
		}
		p.await(nil, nil)
	}
}

// letPass ends the waiting of a large message. Small ones that it kept from a connection
// may find one now that it did not need.
func (p *pool) letPass(key poolKey) {
	if p.large[key]--; p.large[key] == 0 {
		delete(p.large, key)
		p.change()
	}
}

// join finds a connection that is there and has room, nil if there is none.
func (p *pool) join(e errand) *link {
	p.mu.Lock()
	defer p.mu.Unlock()
	l := p.choose(&e)
	if l != nil {
		p.use(l, &e)
	}
	return l
}

// choose is the connection to use now: an idle one, the one used last, since a server
// that drops idle connections has dropped the others first; else the one with the fewest
// messages on the way. Where a large message waits for one to become idle, small ones take
// none and join none.
func (p *pool) choose(e *errand) *link {
	var best *link
	// Two messages on a connection are no faster than each on its own.
	full := p.count(e.key) >= p.perHost
	if e.small && full && p.large[e.key] > 0 {
		return nil
	}
	for _, l := range slices.Backward(p.links) {
		if !p.serves(l, e) {
			continue
		}
		if l.users == 0 {
			return l
		}
		if e.small && !l.alone && l.users < l.conn.Window() && (full || l.conn.Most() > 2) && (best == nil || l.users < best.users) {
			best = l
		}
	}
	return best
}

// serves tells whether a link is one for an errand, now or later.
func (p *pool) serves(l *link, e *errand) bool {
	return l.key.same(e.key) && e.key.from.has(l.source) && l.conn.Usable() &&
		!l.opened.Before(e.since) && l.uses < maxUses && p.now().Sub(l.opened) < maxAge
}

// use counts a message on a link.
func (p *pool) use(l *link, e *errand) {
	if l.users == 0 {
		if l.timer != nil {
			l.timer.Stop()
		}
		l.began = p.now()
	}
	l.users++
	l.uses++
	l.alone = !e.small
}

// hope is a connection that is being opened and that not too many wait for: as many as the
// host's last one took, if there was one.
func (p *pool) hope(e *errand) *opening {
	most, known := p.known[hostOf(e.key)]
	if !known {
		most = p.most()
	}
	for _, o := range p.opening {
		if o.key == e.key && o.wait < most-1 {
			return o
		}
	}
	return nil
}

// proving is a link whose first message is on the way: when that is answered many others
// may follow at once. It is waited for no longer than it takes to open another.
func (p *pool) proving(e *errand) *link {
	for _, l := range p.links {
		if p.serves(l, e) && !l.alone && l.uses == 1 && l.conn.Most() > 2 && l.hoping < l.conn.Most()-1 && p.left(l) > 0 {
			return l
		}
	}
	return nil
}

// left is how long a link that is proving is still waited for.
func (p *pool) left(l *link) time.Duration { return l.took - p.now().Sub(l.began) }

func (p *pool) most() int {
	if p.window == 0 {
		return 10
	}
	return p.window
}

// evict takes leave of an idle connection that is too old for an errand.
func (p *pool) evict(e *errand) bool {
	for i, l := range p.links {
		if l.users == 0 && l.key.same(e.key) && e.key.from.has(l.source) && !p.serves(l, e) {
			p.drop(i)
			return true
		}
	}
	return false
}

// count is how many connections to a host, from the same sources, there are and will be.
func (p *pool) count(key poolKey) int {
	n := 0
	for _, l := range p.links {
		if l.key.same(key) && key.from.has(l.source) && l.conn.Usable() {
			n++
		}
	}
	for _, o := range p.opening {
		if o.key == key {
			n++
		}
	}
	return n
}

// add opens a connection.
func (p *pool) add(e *errand) (l *link, why *refusal) {
	o := &opening{key: e.key}
	p.opening = append(p.opening, o)
	defer func() {
		// Also in a panic: those who hope for the connection see to themselves then.
		p.opening = slices.DeleteFunc(p.opening, func(x *opening) bool { return x == o })
		o.ended, o.why = true, why
		p.change()
	}()
	begin := p.now()
	if l, why = p.unlocked(e.open); l == nil {
		return nil, why
	}
	l.opened = p.now()
	l.took = l.opened.Sub(begin)
	if until, ok := p.single[hostOf(e.key)]; ok {
		if p.now().Before(until) {
			l.conn.Single()
		} else {
			delete(p.single, hostOf(e.key))
		}
	}
	if len(p.known) >= maxHosts {
		clear(p.known)
	}
	p.known[hostOf(e.key)] = l.conn.Most()
	p.links = append(p.links, l)
	p.use(l, e)
	return l, nil
}

// unlocked opens a connection while others use the pool.
func (p *pool) unlocked(open func() (*link, *refusal)) (*link, *refusal) {
	p.mu.Unlock()
	defer p.mu.Lock()
	return open()
}

// await waits for a change: with an opening for its end, with a link that is proving for
// its time. false: that was over.
func (p *pool) await(o *opening, l *link) bool {
	if o != nil {
		o.wait++
		defer func() { o.wait-- }()
	}
	var late <-chan time.Time
	if l != nil {
		timer := time.NewTimer(p.left(l))
		defer timer.Stop()
		late = timer.C
	}
	for {
		changed := p.changed
		p.mu.Unlock()
		inTime := true
		select {
		case <-changed:
		case <-late:
			inTime = false
		}
		p.mu.Lock()
		if !inTime || o == nil || o.ended {
			return inTime
		}
	}
}

// change wakes who waits.
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
	if l.users--; l.users > 0 {
		return
	}
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
	// Those used last stand last.
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
		if l.users == 0 {
			n, oldest = n+1, i
		}
	}
	return n, oldest
}

// distrust has a host get its messages one after the other for a while.
func (p *pool) distrust(key poolKey) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.single) >= maxHosts {
		clear(p.single)
	}
	p.single[hostOf(key)] = p.now().Add(single)
}

// hostOf is a key whatever the source and the terms: what is known of a server holds when
// the files tls and credentials were read again.
func hostOf(key poolKey) poolKey { return poolKey{channel: key.channel, host: key.host} }

// expire ends a connection whose idle time is over, if nobody has taken it.
func (p *pool) expire(l *link) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if i := slices.Index(p.links, l); i >= 0 && l.users == 0 {
		p.drop(i)
		p.change()
	}
}

// drop takes leave of an idle link while others go on.
func (p *pool) drop(i int) {
	l := p.links[i]
	if l.timer != nil {
		l.timer.Stop()
	}
	p.links = slices.Delete(p.links, i, i+1)
	p.leave.Go(func() { l.conn.Quit() })
}

// close dismisses all and waits for them. None may be in use.
func (p *pool) close() {
	p.mu.Lock()
	p.closed = true
	for len(p.links) > 0 {
		p.drop(len(p.links) - 1)
	}
	p.mu.Unlock()
	p.leave.Wait()
}
