// Package thread is the scheduler's core: which recipients of which message are to
// be delivered next. It is pure: no goroutine, no clock, no disk, no process; the
// caller passes the time and the events, and asks what to do.
//
// A vertex is the open recipients that one message has for one channel and host. A
// thread is all vertices of one channel and host; a ring is all threads that one
// kind of transport agent serves. Threads of a ring take turns; within a thread, new and
// old mail take turns, and so do senders. A host in trouble makes its whole thread wait,
// with one vertex at a time as the probe. The number of parallel deliveries to a host adapts
// to its answers. A rate limit delays a delivery, which does not count as an attempt.
//
// Nothing here survives a crash: attempts and next times are read back from the
// work specifications and come in by Add.
//
// Diagnostics: there are no errors; calls that a vertex's state does not allow are
// mistakes of the caller and panic.
package thread

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"time"

	"zmailer/internal/run/recent"
)

// Policy has the settings of scheduler.conf for the threads of a ring.
type Policy struct {
	Interval time.Duration // unit of the waits; above 0
	Retries  []int         // waits after each failed attempt, in intervals; not empty
	Expiry   time.Duration // age of a message that ends the attempts, after one at least; 0: never
	Expiry2  time.Duration // the same, attempted or not; 0: never
	// Deliveries at once: of all rings with the thread's channel, of the ring, of
	// the thread. 0: no limit.
	MaxChannel, MaxRing, MaxThread int
	// MaxUnproven bounds deliveries at once, in the ring, to hosts that are not known to
	// answer; reports may take less of them (see tierOf). 0: no limit.
	MaxUnproven    int
	AgeOrder       bool // oldest first; else in random order
	Start          int  // deliveries at once to a host that nothing is known of, at most MaxThread; 0: 5
	Jitter         int  // percent of a wait that is added at random, at most
	QueueOnly      bool // nothing begins until Kick
	JoinWaiting    bool // new mail waits for the mail that waits already
	Rate, HostRate Rate // of deliveries begun: of the ring, of each thread
}

// state is where a vertex is.
type state uint8

const (
	parked  state = iota // the caller decides: Wait or Forget follows
	waiting              // for its time, or in its thread's ready list
	running              // in an agent
	gone                 // done with
)

// Vertex is the open recipients of a message for one channel and host. There may be
// millions: it is kept small.
type Vertex struct {
	Message *Message
	Thread  *Thread

	one         [1]Recipient
	more        *[]Recipient // instead, if there are several
	sibling     *Vertex      // of the same message
	left, right *Vertex      // in an order
	next        int64        // not before, milliseconds of the core's time
	wake        int64        // key in the agenda; while it runs, when that began
	slot        int32        // place in the agenda, -1: not there
	place       int32        // in the thread's list
	head        int32        // place in the heads of an order, -1: not there
	mark        uint32       // of a head, its turn; while it runs, the thread's epoch when that began
	fails       uint16       // of the thread when the vertex came

	Attempts uint16 // that ended in a deferral
	Lost     uint8  // attempts that ended without an answer, since the last one
	step     uint8  // into Policy.Retries
	state    state
	flags    flags
}

// flags are things that are so or not.
type flags uint8

const (
	queued   flags = 1 << iota // in an agent behind another, see TakeMore
	blamed                     // its last attempt met trouble of the host
	bulk                       // of a message to many
	withheld                   // suspended, whatever its thread is
	spared                     // was suspended, and is too old: see isSpared
)

func (v *Vertex) is(f flags) bool { return v.flags&f != 0 }

func (v *Vertex) set(f flags, on bool) {
	v.flags &^= f
	if on {
		v.flags |= f
	}
}

// Started is when the attempt under way began, zero if none is.
func (v *Vertex) Started() time.Time {
	if v.state != running {
		return time.Time{}
	}
	return v.Thread.Ring.core.time(v.wake)
}

// Due is when the attempt under way might have begun: its recipients' time had come.
// Zero if that is not known: they waited for their host.
func (v *Vertex) Due() time.Time {
	if v.next == 0 || v.is(blamed) {
		return time.Time{}
	}
	return v.Thread.Ring.core.time(v.next)
}

// History is what a vertex has behind it when it comes in.
type History struct {
	Attempts int
	Next     time.Time // not before; zero: at once
	// HostTries is how often the host was in trouble in a row: the thread, not the
	// vertex, waits until Next. 0: it was not.
	HostTries int
	HostText  string // the reply then
	// Away does not make the recipients older, beside Message.Away.
	Away time.Duration
}

// Core holds all rings and the schedule. It is used by one goroutine.
type Core struct {
	schedule
	rings    map[string]*Ring
	channels map[string]*channel
	expired  []*Vertex
	due      []*Message
}

// schedule decides what is looked at next: what is due by the time of vertices, hosts, rates and
// messages, and the rings that something changed for.
type schedule struct {
	clock
	gates
	rand      *rand.Rand
	first     turns // rings that met the limit of a channel, which has room now
	touched   turns // other rings that something changed for
	vertices  agenda[*Vertex]
	throttles agenda[*Ring]
	threads   agenda[*Thread]
	messages  agenda[*Message]
	proven    recent.Set[threadKey] // hosts without mail whose last delivery got an answer
}

// New makes a core. r gives jitter, random order and random re-entry.
func New(r *rand.Rand) *Core {
	return &Core{
		schedule: schedule{rand: r, proven: recent.New[threadKey](provenAtOnce)},
		rings:    map[string]*Ring{}, channels: map[string]*channel{},
	}
}

// Add takes in the open recipients of m for one channel and host. Recipients are in
// ascending order of offset and stay the core's. m.Open counts them already.
func (c *Core) Add(m *Message, r *Ring, channel, host string, rcpts []Recipient, h History, now time.Time) *Vertex {
	t := c.thread(r, channel, host)
	c.enter(m)
	m.notAhead(c.ms(now))
	v := &Vertex{Message: m, Thread: t, slot: -1, head: -1, sibling: m.first}
	v.setRecipients(rcpts)
	v.Attempts = uint16(min(h.Attempts, 1<<16-1))
	v.set(bulk, m.Total > bulky)
	v.step = uint8(min(h.Attempts, len(r.Policy.Retries)))
	m.first = v
	if h.Away > 0 {
		v.SetAway(h.Away)
	}
	t.take(v)
	if c.sifting && c.gate.Vertex(v) != nil {
		t.withhold(v, true)
	}
	if v.next = c.ms(now); !h.Next.IsZero() && h.HostTries == 0 {
		v.next = c.ms(h.Next)
		if h.Attempts > 0 {
			v.next = min(v.next, c.ms(now)+r.Policy.longest())
		}
	}
	if h.HostTries > 0 && !h.Next.IsZero() {
		c.resumeTrouble(t, h, c.ms(now))
	}
	if h.Attempts > 0 {
		t.again = max(t.again, v.next)
	}
	if r.Policy.JoinWaiting && h.Attempts == 0 && t.ready == 0 && t.running == 0 {
		v.next = max(v.next, t.again)
	}
	c.Wait(v, now)
	return v
}

// Wait puts a parked vertex back to wait for its turn.
func (c *Core) Wait(v *Vertex, now time.Time) {
	if v.state != parked {
		panic("thread: Wait for a vertex that is not parked")
	}
	v.state = waiting
	ms := c.ms(now)
	if v.next <= ms || v.is(blamed) {
		v.Thread.pushReady(v)
		c.update(v.Thread, ms)
	}
	c.arm(v, ms)
}

// Park takes a waiting vertex out of its thread's turn.
func (c *Core) Park(v *Vertex, now time.Time) {
	if v.state != waiting {
		panic("thread: Park for a vertex that does not wait")
	}
	c.park(v)
	c.update(v.Thread, c.ms(now))
}

func (c *Core) park(v *Vertex) {
	v.Thread.dropReady(v)
	c.vertices.remove(v)
	v.state = parked
}

// Forget ends a parked vertex: its recipients are all done with. What was open of
// them no longer counts in Message.Open.
func (c *Core) Forget(v *Vertex) {
	if v.state != parked {
		panic("thread: Forget for a vertex that is not parked")
	}
	c.vertices.remove(v)
	v.Message.Open -= int32(len(v.Recipients()))
	c.drop(v)
}

// drop takes a vertex off its message and its thread.
func (c *Core) drop(v *Vertex) {
	v.Thread.remove(v)
	v.end()
	if o := v.Message.odd; o != nil {
		delete(o.aside, v)
	}
	for p := &v.Message.first; *p != nil; p = &(*p).sibling {
		if *p == v {
			*p = v.sibling
			break
		}
	}
	c.retire(v.Thread)
}

// Keep drops the recipients of a parked vertex that keep refuses, and ends the
// vertex if none is left, which it reports.
func (c *Core) Keep(v *Vertex, keep func(*Recipient) bool) (left bool) {
	if v.state != parked {
		panic("thread: Keep for a vertex that is not parked")
	}
	all := v.Recipients()
	list := all[:0]
	for i := range all {
		if keep(&all[i]) {
			list = append(list, all[i])
		}
	}
	v.Message.Open -= int32(len(all) - len(list))
	if len(list) == 0 {
		c.drop(v)
		return false
	}
	v.Thread.rcpts -= len(all) - len(list)
	clear(all[len(list):])
	v.setRecipients(list)
	return true
}

// Join adds recipients to a vertex that waits, which may go when they may, if that is
// sooner; m.Open counts them already.
func (c *Core) Join(v *Vertex, rcpts []Recipient, next, now time.Time) {
	c.Park(v, now)
	v.next = min(v.next, max(c.ms(next), c.ms(now)))
	list := slices.Concat(v.Recipients(), rcpts)
	slices.SortFunc(list, func(a, b Recipient) int { return cmp.Compare(a.Offset(), b.Offset()) })
	v.Thread.rcpts += len(rcpts)
	v.setRecipients(list)
	c.Wait(v, now)
}

// Drop forgets a message: its waiting and parked vertices end at once. Those that
// run end by themselves: see Running.
func (c *Core) Drop(m *Message, now time.Time) {
	c.messages.remove(m)
	var next *Vertex
	for v := m.first; v != nil; v = next {
		next = v.sibling
		switch v.state {
		case waiting:
			c.Park(v, now)
			c.Forget(v)
		case parked:
			c.Forget(v)
		}
	}
}

// Restamp changes when m was accepted, which its place in the order and its age go by.
func (c *Core) Restamp(m *Message, stamp int64, now time.Time) {
	var list []*Vertex
	m.Vertices(func(v *Vertex) {
		if v.state == waiting {
			c.park(v)
			list = append(list, v)
		}
	})
	m.Vertices(func(v *Vertex) { v.Thread.oldest = nil })
	was := m.accepted()
	if m.Stamp = stamp; m.accepted() > c.ms(now) {
		// It does not become younger by a time that is still to come.
		m.oddly().ahead = was - stamp/int64(time.Millisecond)
	}
	for _, v := range list {
		c.Wait(v, now)
	}
}

// Running reports whether an agent has the vertex.
func (v *Vertex) Running() bool { return v.state == running }

// Waiting reports whether the vertex waits for its turn.
func (v *Vertex) Waiting() bool { return v.state == waiting }
