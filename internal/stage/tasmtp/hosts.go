package tasmtp

import (
	"sync"
	"sync/atomic"
	"time"
)

const (
	// probeEvery is how often an address that was silent is tried while there is no
	// other to try, by all messages together.
	probeEvery = time.Minute
	// maxDown bounds the addresses that are remembered.
	maxDown = 10000
)

// notTried ends the reply about an address that was not tried again. It names no time,
// so that all recipients that wait for a host say the same.
const notTried = "; that was a moment ago, it is not tried again yet"

// hostStatus remembers, for all deliveries of this process, which addresses did not
// answer: they are tried when all others of a destination have failed, until keep is
// over. Then one message finds out, and the others go on passing it over until it has
// its answer. A session with an address lets it rise again.
type hostStatus struct {
	keep time.Duration // 0: nothing is remembered
	now  func() time.Time

	some atomic.Bool // false: nobody is dead, which costs no lock to find out
	mu   sync.Mutex
	all  map[route]*addrStatus
}

// route is a way to an address: one source may reach what another does not.
type route struct {
	address string
	from    *source
}

// addrStatus is an address that did not answer.
type addrStatus struct {
	until  time.Time // it is tried last
	next   time.Time // and not at all before this, if it was silent
	reason *refusal
}

// part separates the addresses that are to be tried in their turn from those that are
// to be tried last.
func (d *hostStatus) split(from origin, addrs []target) (alive, dead []target) {
	if !d.some.Load() {
		return addrs, nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	now := d.now()
	for _, t := range addrs {
		src, _ := from.source(t)
		g := d.all[route{t.address, src}]
		switch {
		case g == nil:
			alive = append(alive, t)
		case now.Before(g.until):
			dead = append(dead, t)
		default:
			// Ours to find out.
			g.until, g.next = now.Add(d.keep), now.Add(d.pause())
			alive = append(alive, t)
		}
	}
	return alive, dead
}

// last gives those of dead addresses that are tried now that nothing else is left, and
// why others are not.
func (d *hostStatus) retry(from origin, addrs []target) (tried []target, why *refusal) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := d.now()
	for _, t := range addrs {
		src, _ := from.source(t)
		g := d.all[route{t.address, src}]
		if g != nil && g.reason.silent && now.Before(g.next) {
			again := *g.reason
			again.reply += notTried
			why = worse(why, &again)
			continue
		}
		if g != nil {
			g.next = now.Add(d.pause())
		}
		tried = append(tried, t)
	}
	return tried, why
}

func (d *hostStatus) pause() time.Duration { return min(d.keep, probeEvery) }

// bury remembers an address that did not answer.
func (d *hostStatus) markDown(t target, from *source, why *refusal) {
	if d.keep <= 0 || t.network == "unix" {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	now := d.now()
	if d.all == nil {
		d.all = map[route]*addrStatus{}
	}
	d.makeRoom(now)
	d.all[route{t.address, from}] = &addrStatus{until: now.Add(d.keep), next: now.Add(d.pause()), reason: why}
	d.some.Store(true)
}

// raise forgets an address that has answered.
func (d *hostStatus) markUp(t target, from *source) {
	if !d.some.Load() {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.all, route{t.address, from})
	d.some.Store(len(d.all) > 0)
}

// makeRoom forgets what is over if there is much, and the one that is over next if that
// is not enough.
func (d *hostStatus) makeRoom(now time.Time) {
	if len(d.all) < maxDown {
		return
	}
	var oldest route
	var first *addrStatus
	for r, g := range d.all {
		if !now.Before(g.until) {
			delete(d.all, r)
		} else if first == nil || g.until.Before(first.until) {
			oldest, first = r, g
		}
	}
	if len(d.all) >= maxDown {
		delete(d.all, oldest)
	}
}
