package thread

import (
	"math"
	"time"
)

// Rate is so many in a time. The zero value is no limit.
type Rate struct {
	N   int
	Per time.Duration
}

// step is the time from one to the next, in nanoseconds, rounded up, so that there are
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
func (c *Core) alarm(t *Thread, ms int64) {
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
func (c *Core) throttled(r *Ring, ms int64) bool {
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

// How many deliveries at once a host is given: a start, then more while it serves them,
// half as many when it refuses connections, answers that it has too many, or puts off one
// message after the other; never less than one (docs/notes/concurrency.md).

// usualStart is where the limit starts if the policy does not say.
const usualStart = 5

// mostEver bounds a limit that the policy does not bound.
const mostEver = 10_000

// start is the limit for a host of which nothing is known.
func (p *Policy) start() int32 {
	n := p.Start
	if n <= 0 {
		n = usualStart
	}
	return int32(min(n, p.most()))
}

// most is what a limit does not exceed.
func (p *Policy) most() int {
	if p.MaxThread > 0 {
		return p.MaxThread
	}
	return mostEver
}

// Limit is how many deliveries at once the host is given now.
func (t *Thread) Limit() int { return t.bound() }

// grow takes note that the host has served a delivery: one more for each, until the
// limit was too high once, then one more when as many were served as run at once.
// It does not exceed twice of what ran at once: the rest shows nothing about what the host
// bears.
func (t *Thread) grow() {
	t.put = 0
	if t.limit >= 2*t.peak || int(t.limit) >= t.Ring.Policy.most() {
		return
	}
	if t.met {
		need := t.limit
		if t.limit+1 == t.ceiling {
			need *= patience
		}
		if t.gain++; t.gain < need {
			return
		}
	}
	t.gain = 0
	t.limit++
}

// patience is how many times more deliveries it takes to go again to where the host had
// too much than to any other limit.
const patience = 20

// halve takes note that the host has too much.
func (t *Thread) halve() {
	t.ceiling = t.limit
	t.limit = max(t.limit/2, 1)
	t.met, t.gain, t.put, t.peak = true, 0, 0, 0
}

// putOff takes note that the host put a message off, and reports whether that were too many
// without another answer between them: twice as many as run at once, ten at least.
func (t *Thread) putOff() bool {
	t.put++
	return t.put >= max(10, 2*t.limit)
}

// begin has the limit be as for a host of which nothing is known.
func (t *Thread) begin() {
	t.limit, t.met, t.gain, t.put, t.peak, t.ceiling = t.Ring.Policy.start(), false, 0, 0, 0, 0
}
