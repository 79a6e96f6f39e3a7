package thread

import (
	"container/heap"
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

func (a *agenda[T]) Len() int           { return len(a.list) }
func (a *agenda[T]) Less(i, j int) bool { return a.list[i].at() < a.list[j].at() }

func (a *agenda[T]) Swap(i, j int) {
	a.list[i], a.list[j] = a.list[j], a.list[i]
	*a.list[i].spot(), *a.list[j].spot() = int32(i), int32(j)
}

func (a *agenda[T]) Push(x any) {
	*x.(T).spot() = int32(len(a.list))
	a.list = append(a.list, x.(T))
}

func (a *agenda[T]) Pop() any {
	var none T
	last := len(a.list) - 1
	x := a.list[last]
	a.list[last] = none
	a.list = a.list[:last]
	*x.spot() = -1
	return x
}

// set adds x, or moves it after its time changed.
func (a *agenda[T]) set(x T) {
	if i := *x.spot(); i >= 0 {
		heap.Fix(a, int(i))
	} else {
		heap.Push(a, x)
	}
}

// remove takes x out, if it is there.
func (a *agenda[T]) remove(x T) {
	if i := int(*x.spot()); i >= 0 && i < len(a.list) && a.list[i] == x {
		heap.Remove(a, i)
	}
}

// pop takes out the first entry if its time has come.
func (a *agenda[T]) pop(now int64) (x T, ok bool) {
	if a.first() > now {
		return x, false
	}
	return heap.Pop(a).(T), true
}

func (a *agenda[T]) first() int64 {
	if len(a.list) == 0 {
		return math.MaxInt64
	}
	return a.list[0].at()
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
func (c *schedule) arm(v *Vertex, ms int64) {
	wake := v.expires(ms)
	if !v.isReady() && !v.is(withheld) {
		wake = min(wake, v.next)
	}
	if wake == math.MaxInt64 {
		c.vertices.remove(v)
		return
	}
	v.wake = wake
	c.vertices.set(v)
}
