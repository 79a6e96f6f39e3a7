package thread

import (
	"math"
	"time"
)

// timed is what an agenda orders: it knows its time and its place.
type timed interface {
	comparable
	at() int64 // milliseconds since 1970
	spot() *int32
}

// agenda is a heap by time. Each entry keeps its own place, so that it can be moved
// and removed without a search.
type agenda[T timed] struct{ list []T }

func (v *Vertex) at() int64     { return v.wake }
func (v *Vertex) spot() *int32  { return &v.slot }
func (t *Thread) at() int64     { return t.wake }
func (r *Ring) at() int64       { return r.wake }
func (r *Ring) spot() *int32    { return &r.slot }
func (t *Thread) spot() *int32  { return &t.slot }
func (m *Message) at() int64    { return m.due }
func (m *Message) spot() *int32 { return &m.slot }

// set adds x, or moves it after its time changed.
func (a *agenda[T]) set(x T) {
	i := int(*x.spot())
	if i < 0 {
		i = len(a.list)
		a.list = append(a.list, x)
		*x.spot() = int32(i)
	}
	if !a.down(i) {
		a.up(i)
	}
}

// remove takes x out, if it is there.
func (a *agenda[T]) remove(x T) {
	i := int(*x.spot())
	if i < 0 || i >= len(a.list) || a.list[i] != x {
		return
	}
	last := len(a.list) - 1
	a.swap(i, last)
	var none T
	a.list[last] = none
	a.list = a.list[:last]
	*x.spot() = -1
	if i < last && !a.down(i) {
		a.up(i)
	}
}

// pop takes out the first entry if its time has come.
func (a *agenda[T]) pop(now int64) (x T, ok bool) {
	if len(a.list) == 0 || a.list[0].at() > now {
		return x, false
	}
	x = a.list[0]
	a.remove(x)
	return x, true
}

func (a *agenda[T]) first() int64 {
	if len(a.list) == 0 {
		return math.MaxInt64
	}
	return a.list[0].at()
}

func (a *agenda[T]) swap(i, j int) {
	a.list[i], a.list[j] = a.list[j], a.list[i]
	*a.list[i].spot(), *a.list[j].spot() = int32(i), int32(j)
}

func (a *agenda[T]) up(i int) {
	for i > 0 {
		parent := (i - 1) / 2
		if a.list[parent].at() <= a.list[i].at() {
			return
		}
		a.swap(i, parent)
		i = parent
	}
}

func (a *agenda[T]) down(i int) (moved bool) {
	for {
		child := 2*i + 1
		if child >= len(a.list) {
			return moved
		}
		if child+1 < len(a.list) && a.list[child+1].at() < a.list[child].at() {
			child++
		}
		if a.list[i].at() <= a.list[child].at() {
			return moved
		}
		a.swap(i, child)
		i, moved = child, true
	}
}

// Remind makes Advance give m at a time; the zero time takes that back. A message
// has one reminder: the last one set.
func (c *Core) Remind(m *Message, at time.Time) {
	c.enter(m)
	if m.due == 0 {
		m.slot = -1 // of a message that was never in the agenda
	}
	if at.IsZero() {
		c.messages.remove(m)
		return
	}
	m.due = c.ms(at)
	c.messages.set(m)
}

// Reminder is when m's reminder comes, zero if it has none.
func (c *Core) Reminder(m *Message) time.Time {
	if m.due == 0 || m.slot < 0 {
		return time.Time{}
	}
	return c.time(m.due)
}

// at takes note of the time.
func (c *Core) at(now time.Time) int64 {
	c.now = c.ms(now)
	return c.now
}

// Next is when Advance has something to do, zero if never.
func (c *Core) Next() time.Time {
	ms := min(c.vertices.first(), c.threads.first(), c.messages.first(), c.throttles.first())
	if ms == math.MaxInt64 {
		return time.Time{}
	}
	return c.time(ms)
}

// atOnce is how much of each kind Advance does in one call.
const atOnce = 512

// Advance acts on everything due: it readies vertices and threads whose wait is over and
// gives the vertices that are too old, which are parked, and the messages whose
// reminder came. The slices are good until the next call.
// If much is due at once, the rest is left for another call, and Next returns its time.
func (c *Core) Advance(now time.Time) (expired []*Vertex, due []*Message) {
	ms := c.at(now)
	c.expired, c.due = c.expired[:0], c.due[:0]
	for range atOnce {
		r, ok := c.throttles.pop(ms)
		if !ok {
			break
		}
		c.Touch(r)
	}
	for range atOnce {
		t, ok := c.threads.pop(ms)
		if !ok {
			break
		}
		c.update(t, ms)
		c.retire(t)
	}
	for range atOnce {
		v, ok := c.vertices.pop(ms)
		if !ok {
			break
		}
		c.wakeVertex(v, ms)
	}
	for range atOnce {
		m, ok := c.messages.pop(ms)
		if !ok {
			break
		}
		c.due = append(c.due, m)
	}
	return c.expired, c.due
}

func (c *Core) wakeVertex(v *Vertex, ms int64) {
	if v.isExpired(ms) {
		c.park(v)
		c.update(v.Thread, ms)
		c.expired = append(c.expired, v)
		return
	}
	if v.next <= ms && !v.isReady() {
		v.Thread.pushReady(v)
		c.update(v.Thread, ms)
	}
	c.arm(v, ms)
}

// arm puts a waiting vertex into the agenda for what comes first: the end of its
// wait or its expiry.
func (c *Core) arm(v *Vertex, ms int64) {
	wake := v.expires(ms)
	if !v.isReady() {
		wake = min(wake, v.next)
	}
	if wake == math.MaxInt64 {
		c.vertices.remove(v)
		return
	}
	v.wake = wake
	c.vertices.set(v)
}
