// Package thread is the scheduler's core: which recipients of which message are to
// be delivered next. It is pure: no goroutine, no clock, no disk, no process; the
// caller tells it the time and what happened, and asks what to do.
//
// A vertex is the open recipients that one message has for one channel and host. A
// thread is all vertices of one channel and host; a ring is all threads that one
// kind of transport agent serves. Threads of a ring take turns. A host in trouble
// makes its whole thread wait, with one vertex at a time as the probe.
//
// Nothing here survives a crash: attempts and next times are read back from the
// work specifications and come in by Add.
//
// Diagnostics: there are no errors; calls that a vertex's state does not allow are
// mistakes of the caller and panic.
package thread

import (
	"math/rand/v2"
	"time"
)

// Policy is what scheduler.conf says about the threads of a ring.
type Policy struct {
	Interval time.Duration // unit of the waits; above 0
	Retries  []int         // waits after each failed attempt, in intervals; not empty
	Expiry   time.Duration // age of a message that ends the attempts, after one at least; 0: never
	Expiry2  time.Duration // the same, attempted or not; 0: never
	// Deliveries at once: of all rings with the thread's channel, of the ring, of
	// the thread. 0: no limit.
	MaxChannel, MaxRing, MaxThread int
	AgeOrder                       bool // oldest first; else in random order
}

// Message is one message with recipients that wait. The caller fills in what is
// exported and keeps Open right for recipients that are in no vertex.
type Message struct {
	Name   string // below transport/
	Number uint64 // inode, which answers of agents name
	Stamp  int64  // when it was accepted, in nanoseconds since 1970
	Open   int    // recipients without a final outcome
	Seen   uint32 // free for the caller: its last look at the directory
	Owes   bool   // free for the caller: its specification holds more than tags

	due   int64 // milliseconds since 1970: see Remind
	slot  int32
	first *Vertex
}

// Recipient is one recipient of a vertex.
type Recipient struct {
	Offset  int64 // of the r line
	Address string
	Result  Result // of the attempt under way
}

// Result is an agent's answer for one recipient. The zero value is none yet.
type Result uint8

// Results.
const (
	None Result = iota
	Deferred
	HostDeferred // the trouble is the host's
	Failed
	Delivered
)

// Final tells whether nothing more is to be done for the recipient.
func (r Result) Final() bool { return r >= Failed }

// state is where a vertex is.
type state uint8

const (
	parked  state = iota // the caller decides: Wait or Forget follows
	waiting              // for its time, or in its thread's ready list
	running              // in an agent
	gone                 // done with
)

// Vertex is the open recipients of a message for one channel and host.
type Vertex struct {
	Message    *Message
	Thread     *Thread
	Recipients []Recipient // by offset, ascending
	Attempts   uint16      // that ended in a deferral
	Lost       uint8       // attempts that ended without an answer, since the last one
	Started    int64       // of the attempt under way, milliseconds since 1970

	step    uint8 // into Policy.Retries
	state   state
	queued  bool   // in an agent behind another, see TakeMore
	epoch   uint32 // of the thread when the attempt started
	added   int64
	next    int64 // not before, milliseconds since 1970
	wake    int64 // key in the agenda
	slot    int32 // place in the agenda, -1: not there
	ready   int32 // place in the thread's ready list, -1: not there
	sibling *Vertex
}

// History is what a vertex has behind it when it comes in.
type History struct {
	Attempts int
	Next     time.Time // not before; zero: at once
	// HostTries is how often the host was in trouble in a row: the thread, not the
	// vertex, waits until Next. 0: it was not.
	HostTries int
	HostText  string // what was said then
}

// Core holds all rings and what is to happen when. It is used by one goroutine.
type Core struct {
	rand     *rand.Rand
	rings    map[string]*Ring
	channels map[string]*channel
	touched  []*Ring
	vertices agenda[*Vertex]
	threads  agenda[*Thread]
	messages agenda[*Message]
	expired  []*Vertex
	due      []*Message
}

// New makes a core. r gives jitter, random order and random re-entry.
func New(r *rand.Rand) *Core {
	return &Core{rand: r, rings: map[string]*Ring{}, channels: map[string]*channel{}}
}

// Add takes in the open recipients of m for one channel and host. Recipients are in
// ascending order of offset and stay the core's. m.Open counts them already.
func (c *Core) Add(m *Message, r *Ring, channel, host string, rcpts []Recipient, h History, now time.Time) *Vertex {
	t := c.thread(r, channel, host)
	v := &Vertex{Message: m, Thread: t, Recipients: rcpts, added: now.UnixMilli(), slot: -1, ready: -1, sibling: m.first}
	v.Attempts = uint16(min(h.Attempts, 1<<16-1))
	v.step = uint8(min(h.Attempts, len(r.Policy.Retries)))
	m.first = v
	t.count++
	if !h.Next.IsZero() && h.HostTries == 0 {
		v.next = h.Next.UnixMilli()
	}
	if h.HostTries > 0 && !h.Next.IsZero() {
		c.resumeTrouble(t, h)
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
	ms := now.UnixMilli()
	if v.next <= ms {
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
	c.update(v.Thread, now.UnixMilli())
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
	v.state = gone
	c.vertices.remove(v)
	v.Message.Open -= len(v.Recipients)
	v.Recipients = nil
	for p := &v.Message.first; *p != nil; p = &(*p).sibling {
		if *p == v {
			*p = v.sibling
			break
		}
	}
	c.release(v.Thread)
}

// Keep drops the recipients of a parked vertex that keep refuses, and ends the
// vertex if none is left, which it tells.
func (c *Core) Keep(v *Vertex, keep func(*Recipient) bool) (left bool) {
	if v.state != parked {
		panic("thread: Keep for a vertex that is not parked")
	}
	list := v.Recipients[:0]
	for i := range v.Recipients {
		if keep(&v.Recipients[i]) {
			list = append(list, v.Recipients[i])
		}
	}
	clear(v.Recipients[len(list):])
	v.Message.Open -= len(v.Recipients) - len(list)
	v.Recipients = list
	if len(list) == 0 {
		c.Forget(v)
	}
	return len(list) > 0
}

// Drop forgets a message: its waiting and parked vertices end at once. Those that
// run end by themselves: Running tells them.
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

// Vertices calls fn for each vertex of m; fn may end that one.
func (m *Message) Vertices(fn func(*Vertex)) {
	var next *Vertex
	for v := m.first; v != nil; v = next {
		next = v.sibling
		fn(v)
	}
}

// Running tells a vertex that an agent has.
func (v *Vertex) Running() bool { return v.state == running }

// Waiting tells a vertex that waits for its turn.
func (v *Vertex) Waiting() bool { return v.state == waiting }

// Find is the recipient at an offset, nil if the vertex has none there.
func (v *Vertex) Find(offset int64) *Recipient {
	lo, hi := 0, len(v.Recipients)
	for lo < hi {
		mid := (lo + hi) / 2
		if v.Recipients[mid].Offset < offset {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	if lo < len(v.Recipients) && v.Recipients[lo].Offset == offset {
		return &v.Recipients[lo]
	}
	return nil
}

// Answered tells whether every recipient has a result.
func (v *Vertex) Answered() bool {
	for i := range v.Recipients {
		if v.Recipients[i].Result == None {
			return false
		}
	}
	return true
}
