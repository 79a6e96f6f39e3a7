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
// so that all recipients of a host get the same reply.
const notTried = "; that was a moment ago, it is not tried again yet"

// hostStatus is the host status cache: it remembers, for all deliveries of this process,
// which addresses did not answer. Until keep is over they are tried only when all other
// addresses of a destination have failed. Then one message tries the address again, and
// the others go on skipping it until that message has its answer. A session with an
// address marks it up.
type hostStatus struct {
	keep time.Duration // 0: nothing is remembered
	now  func() time.Time

	some atomic.Bool // false: no host is dead, which costs no lock to find out
	mu   sync.Mutex
	down map[route]*addrStatus
}

// route is a way to an address: one source may reach what another does not.
type route struct {
	address string
	from    *source
}

// addrStatus is what is known of an address that did not answer.
type addrStatus struct {
	until  time.Time // it is tried last
	next   time.Time // and not at all before this, if it was silent
	reason *refusal
}

// split separates the addresses to try in their turn from those to try last.
func (d *hostStatus) split(from origin, addrs []target) (alive, dead []target) {
	if !d.some.Load() {
		return addrs, nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	now := d.now()
	for _, t := range addrs {
		src, _ := from.source(t)
		g := d.down[route{t.address, src}]
		switch {
		case g == nil:
			alive = append(alive, t)
		case now.Before(g.until):
			dead = append(dead, t)
		default:
			// This message tries the address.
			g.until, g.next = now.Add(d.keep), now.Add(d.pause())
			alive = append(alive, t)
		}
	}
	return alive, dead
}

// retry returns the addresses marked down that are tried now because no other is left, and
// why the rest is not.
func (d *hostStatus) retry(from origin, addrs []target) (tried []target, why *refusal) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := d.now()
	for _, t := range addrs {
		src, _ := from.source(t)
		g := d.down[route{t.address, src}]
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

// markDown remembers an address that did not answer.
func (d *hostStatus) markDown(t target, from *source, why *refusal) {
	if d.keep <= 0 || t.network == "unix" {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	now := d.now()
	if d.down == nil {
		d.down = map[route]*addrStatus{}
	}
	d.makeRoom(now)
	d.down[route{t.address, from}] = &addrStatus{until: now.Add(d.keep), next: now.Add(d.pause()), reason: why}
	d.some.Store(true)
}

// markUp forgets an address that has answered.
func (d *hostStatus) markUp(t target, from *source) {
	if !d.some.Load() {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.down, route{t.address, from})
	d.some.Store(len(d.down) > 0)
}

// makeRoom forgets expired entries if there are too many, and the entry that expires next
// if none has.
func (d *hostStatus) makeRoom(now time.Time) {
	if len(d.down) < maxDown {
		return
	}
	var oldest route
	var first *addrStatus
	for r, g := range d.down {
		if !now.Before(g.until) {
			delete(d.down, r)
		} else if first == nil || g.until.Before(first.until) {
			oldest, first = r, g
		}
	}
	if len(d.down) >= maxDown {
		delete(d.down, oldest)
	}
}
