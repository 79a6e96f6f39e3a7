package thread

import (
	"math"
	"time"
)

// Round is what an attempt of a vertex came to.
type Round struct {
	Left    int       // recipients that are to be tried again
	Host    bool      // because of the host: the thread waits
	Attempt int       // number of this attempt, from 1; 0 if nothing is left
	Next    time.Time // of the next one
	Expired bool      // there will be none: the message is too old
}

// HostWait is an agent's word about the host.
type HostWait struct {
	Until time.Time // not before; zero: as the schedule says
	Text  string
}

// End ends an attempt whose recipients all have a result: the final ones leave the
// vertex, a host in trouble makes its thread wait, a host that gave any other answer
// clears it. If recipients are left, the vertex is parked until the caller has
// recorded Attempt and Next and calls Wait, or Forget if Expired.
func (c *Core) End(v *Vertex, w HostWait, now time.Time) Round {
	t := v.Thread
	bad := false
	for i := range v.Recipients {
		bad = bad || v.Recipients[i].Result == HostDeferred
	}
	started := v.epoch
	c.Stop(v, now)
	if bad {
		c.trouble(t, started, w, now)
	} else {
		c.clear(t, now)
	}
	if !c.Keep(v, func(r *Recipient) bool { return !r.Result.Final() }) {
		return Round{}
	}
	round := Round{Left: len(v.Recipients), Host: bad, Next: c.Defer(v, now)}
	round.Attempt = int(v.Attempts)
	if bad {
		// The thread waits; when it may go on the vertex may.
		v.next = 0
		round.Next = t.Until()
	}
	round.Expired = v.tooOld(now.UnixMilli())
	return round
}

// trouble makes the thread wait on its own schedule. Attempts that had started
// before the trouble was known say nothing new.
func (c *Core) trouble(t *Thread, started uint32, w HostWait, now time.Time) {
	ms := now.UnixMilli()
	t.failed = max(t.failed, ms)
	t.Trouble = w.Text
	known := t.next != 0 && started != t.epoch
	// A time that is over would make the host be tried without a pause (M34).
	asked := w.Until.UnixMilli()
	if w.Until.IsZero() || asked < ms+time.Second.Milliseconds() {
		asked = 0
	}
	switch {
	case known && asked > t.next:
		t.next = asked
	case known:
	default:
		if t.tries < math.MaxUint16 {
			t.tries++
		}
		t.epoch++
		t.next = asked
		if asked == 0 {
			t.next = now.Add(c.delay(&t.Ring.Policy, &t.step)).UnixMilli()
		}
	}
	c.threads.set(t)
	c.update(t, ms)
}

// clear ends the trouble: the host has answered.
func (c *Core) clear(t *Thread, now time.Time) {
	if t.next == 0 {
		return
	}
	t.next, t.tries, t.step, t.Trouble = 0, 0, 0, ""
	t.probe = nil
	t.epoch++
	c.threads.remove(t)
	c.update(t, now.UnixMilli())
}

// resumeTrouble takes up the wait that a former process decided on (A5).
func (c *Core) resumeTrouble(t *Thread, h History) {
	next := h.Next.UnixMilli()
	if next <= t.next {
		return
	}
	t.next = next
	t.tries = uint16(min(h.HostTries, math.MaxUint16))
	t.step = uint8(min(h.HostTries, len(t.Ring.Policy.Retries)))
	t.Trouble = h.HostText
	t.epoch++
	c.threads.set(t)
	t.Ring.unlist(t)
}

// Kick ends the waits of a thread: its host is to be tried now.
func (c *Core) Kick(t *Thread, now time.Time) {
	ms := now.UnixMilli()
	c.clear(t, now)
	for i := 0; i < len(c.vertices.list); i++ {
		v := c.vertices.list[i]
		if v.Thread == t && v.state == waiting && v.ready < 0 {
			v.next = 0
			t.pushReady(v)
		}
	}
	c.update(t, ms)
}
