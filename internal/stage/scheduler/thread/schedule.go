package thread

import (
	"math"
	"slices"
	"time"
)

// delay is the wait after a failed attempt: the next of Policy.Retries, in
// intervals, then over again from a random place, plus some of Policy.Jitter so that
// what failed together does not come back together (M26).
func (c *Core) delay(p *Policy, step *uint8) time.Duration {
	if int(*step) >= len(p.Retries) {
		*step = uint8(c.rand.IntN(len(p.Retries)))
	}
	d := p.Interval * time.Duration(p.Retries[*step])
	*step++
	if most := int64(d) / 100 * int64(p.Jitter); most > 0 {
		d += time.Duration(c.rand.Int64N(most))
	}
	return max(d, time.Millisecond)
}

// longest is the longest wait after a failed attempt, in milliseconds. A time that a
// former policy decided on is never farther away.
func (p *Policy) longest() int64 {
	d := p.Interval * time.Duration(slices.Max(p.Retries))
	return (d + d/100*time.Duration(p.Jitter)).Milliseconds()
}

func (v *Vertex) age(p time.Duration) int64 {
	return v.Message.accepted() + v.away() + p.Milliseconds()
}

// attempted reports whether an attempt of the vertex, or of its host since the vertex
// came, has failed.
func (v *Vertex) attempted() bool { return v.Attempts > 0 || v.Thread.fails != v.fails }

// due reports whether expiry counts: an attempt has failed, or none is to be made.
func (v *Vertex) due() bool { return v.attempted() || v.Thread.paused }

// isExpired reports whether attempts end now (M27): expiry wants one attempt, expiry2
// does not.
func (v *Vertex) isExpired(ms int64) bool {
	p := &v.Thread.Ring.Policy
	if p.Expiry2 > 0 && ms >= v.age(p.Expiry2) {
		return true
	}
	return p.Expiry > 0 && ms >= v.age(p.Expiry) && v.due()
}

// expires is when isExpired is to be asked next, MaxInt64 for never.
func (v *Vertex) expires(ms int64) int64 {
	p := &v.Thread.Ring.Policy
	at := int64(math.MaxInt64)
	if p.Expiry2 > 0 {
		at = v.age(p.Expiry2)
	}
	if p.Expiry > 0 {
		e := v.age(p.Expiry)
		if e <= ms && !v.due() {
			// Too old but never tried: ask again when its turn may have come.
			e = max(ms, v.Thread.next) + p.Interval.Milliseconds()
		}
		at = min(at, e)
	}
	return at
}

// Defer counts a failed attempt of a parked vertex and gives the time of its next
// one. Wait lets it wait for that.
func (c *Core) Defer(v *Vertex, now time.Time) time.Time {
	if v.state != parked {
		panic("thread: Defer for a vertex that is not parked")
	}
	if v.Attempts < math.MaxUint16 {
		v.Attempts++
	}
	v.Lost = 0
	v.next = c.ms(now.Add(c.delay(&v.Thread.Ring.Policy, &v.step)))
	v.Thread.again = v.next
	return c.time(v.next)
}
