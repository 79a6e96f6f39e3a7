package thread

import (
	"math"
	"time"
)

// Rate limits events per interval. The zero value is no limit.
type Rate struct {
	N   int
	Per time.Duration
}

// step returns the time from one to the next, in nanoseconds, rounded up, so that there are
// never more than N in a time Per.
func (r Rate) step() int64 { return (int64(r.Per) + int64(r.N) - 1) / int64(r.N) }

// bucket gives one token after the other at an even pace. None are gathered while
// none is taken.
type bucket struct {
	next int64 // when there is a token, nanoseconds of the core's time
}

// at is when there is a token, in milliseconds of the core's time.
func (b *bucket) at(r Rate) int64 {
	if r.N <= 0 {
		return 0
	}
	return (b.next + int64(time.Millisecond) - 1) / int64(time.Millisecond)
}

// take takes a token. What the caller's clock, which counts milliseconds, came later is
// made up for.
func (b *bucket) take(r Rate, ms int64) {
	if r.N <= 0 {
		return
	}
	if late := ms*int64(time.Millisecond) - b.next; late >= int64(time.Millisecond) {
		b.next += late
	}
	b.next += r.step()
}

// follow takes over another rate: no one waits for a token longer than by that one.
func (b *bucket) follow(r Rate, ms int64) {
	if r.N > 0 {
		b.next = min(b.next, ms*int64(time.Millisecond)+r.step())
	}
}

// Throttle lets nothing of the thread begin before a time: the host asks for patience.
// That is no trouble and no attempt.
func (c *Core) Throttle(t *Thread, until, now time.Time) {
	t.slow = max(t.slow, c.notFar(until, c.ms(now)))
	c.update(t, c.ms(now))
}

// free is when the thread may begin a delivery, as far as rates go.
func (t *Thread) free() int64 { return max(t.slow, t.tokens.at(t.Ring.Policy.HostRate)) }

// free is when the ring may begin a delivery, as far as rates go.
func (r *Ring) free() int64 { return r.tokens.at(r.Policy.Rate) }

// alarm has the thread looked at when something that it waits for is over.
func (c *schedule) alarm(t *Thread, ms int64) {
	at := int64(math.MaxInt64)
	if t.next > ms {
		at = t.next
	}
	if t.ready > 0 && !t.paused || len(t.list) == 0 {
		if free := t.free(); free > ms {
			at = min(at, free)
		}
	}
	if at == math.MaxInt64 {
		c.threads.remove(t)
		return
	}
	t.wake = at
	c.threads.set(t)
}

// throttled reports whether the ring's rate forbids a delivery now, and has the
// ring looked at when it does not.
func (c *schedule) throttled(r *Ring, ms int64) bool {
	free := r.free()
	if free <= ms {
		return false
	}
	if r.turn.count > 0 {
		r.wake = free
		c.throttles.set(r)
	}
	return true
}
