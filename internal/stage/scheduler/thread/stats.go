package thread

import (
	"iter"
	"time"
)

// States of a thread, for display.
const (
	Idle      = "idle"      // nothing is to be done
	Active    = "active"    // deliveries are under way, or are about to be
	Waiting   = "waiting"   // for the time of its vertices
	Throttled = "throttled" // by a rate
	Trouble   = "trouble"   // its host failed; until the next probe
	Probing   = "probing"   // its host failed; a probe is under way
	Paused    = "paused"    // somebody has to ask for it
	NoPlace   = "no-place"  // the places for hosts like its own are taken
	Suspended = "suspended" // by an operator
)

// Stats describes a thread, for display.
type Stats struct {
	Vertices, Recipients int
	Ready, Running       int
	Limit                int    // deliveries at once that its host is given now
	State                string // one of the states above
	Until                time.Time
	Oldest               time.Time // when its oldest message was accepted
	Tries                int       // failures of the host in a row
	Trouble              string
	Attempts             uint64      // since the thread came to be
	Crowd                string      // in state NoPlace, in words
	Suspension           *Suspension // of the whole thread; nil: none
}

// Stats describes the thread. It may look at each of its vertices.
func (t *Thread) Stats(now time.Time) Stats {
	s := t.Brief(now)
	if v := t.first(); v != nil {
		s.Oldest = t.Ring.core.accepted(v.Message)
	}
	if s.State != Waiting {
		return s
	}
	for _, v := range t.list {
		if next := v.Next(); !next.IsZero() && (s.Until.IsZero() || next.Before(s.Until)) {
			s.Until = next
		}
	}
	if s.Until.IsZero() {
		s.State = Idle
	}
	return s
}

// Brief is Stats without a look at the vertices, of which there may be very many: Oldest
// is zero if it is not known, and so is Until while the thread waits for its vertices'
// time.
func (t *Thread) Brief(now time.Time) Stats {
	s := Stats{
		Vertices: len(t.list), Recipients: t.rcpts, Ready: t.ready, Running: t.running, Limit: t.Limit(),
		Tries: t.Tries(), Trouble: t.Trouble, Attempts: t.attempts, Suspension: t.suspended,
	}
	if s.State, s.Until = t.state(t.Ring.core.ms(now)); s.State == NoPlace {
		s.Crowd = t.crowd()
	}
	if t.oldest != nil {
		s.Oldest = t.Ring.core.accepted(t.oldest.Message)
	}
	return s
}

// Next is when a vertex that waits may be tried again, zero if it waits for no time.
func (v *Vertex) Next() time.Time {
	if v.state != waiting || v.next == 0 {
		return time.Time{}
	}
	return v.Thread.Ring.core.time(v.next)
}

// state returns the thread's state and when it ends; zero: unknown.
func (t *Thread) state(ms int64) (state string, until time.Time) {
	free := max(t.free(), t.Ring.free())
	switch {
	case t.suspended != nil:
		return Suspended, t.suspended.Until
	case len(t.list) > 0 && int(t.withheld) == len(t.list) && t.running == 0:
		return Suspended, time.Time{}
	case t.paused:
		return Paused, time.Time{}
	case t.next != 0 && t.probe != nil:
		return Probing, time.Time{}
	case t.next > ms:
		return Trouble, t.Ring.core.time(t.next)
	case t.listed && t.running == 0 && t.crowded():
		return NoPlace, time.Time{}
	case t.next != 0:
		return Trouble, t.Ring.core.time(t.next)
	case t.ready > 0 && free > ms:
		return Throttled, t.Ring.core.time(free)
	case t.ready > 0 || t.running > 0:
		return Active, time.Time{}
	case len(t.list) > 0:
		return Waiting, time.Time{}
	}
	return Idle, time.Time{}
}

// Vertices calls fn for the vertices of the thread from a place on, in any state, until
// it returns false. fn must not change the thread.
func (t *Thread) Vertices(from int, fn func(*Vertex) bool) {
	for i := from; i < len(t.list); i++ {
		if !fn(t.list[i]) {
			return
		}
	}
}

// All returns all threads of all rings. Between two of them the caller may change anything:
// a thread that comes or goes meanwhile may be given or not.
func (c *Core) All() iter.Seq[*Thread] {
	return func(yield func(*Thread) bool) {
		for _, r := range c.rings {
			for _, t := range r.threads {
				if !yield(t) {
					return
				}
			}
		}
	}
}

// Find returns the thread of a channel and host, nil if there is none. key is that of the
// ring that serves it now; while a thread has not followed a new configuration it is in
// another.
func (c *Core) Find(key, channel, host string) *Thread {
	k := keyOf(channel, host)
	if r := c.rings[key]; r != nil && r.threads[k] != nil {
		return r.threads[k]
	}
	for _, r := range c.rings {
		if t := r.threads[k]; t != nil {
			return t
		}
	}
	return nil
}

// Waits reports whether some of the message's recipients are in a thread.
func (m *Message) Waits() bool { return m.first != nil }

// Could returns how many deliveries of the thread could begin and how many run, none if its
// host, a rate or an operator prevents that; and how many have begun since
// the thread came to be. It is cheap.
func (t *Thread) Could(now time.Time) (ready, running int, begun uint64) {
	if t.ready == 0 && t.running == 0 {
		return 0, 0, t.attempts
	}
	if state, _ := t.state(t.Ring.core.ms(now)); state != Active {
		return 0, 0, t.attempts
	}
	return t.ready, t.running, t.attempts
}
