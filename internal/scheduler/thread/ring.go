package thread

import (
	"container/heap"
	"strings"
	"time"
)

// Ring is the threads that one kind of agent serves.
type Ring struct {
	Key    string
	Policy Policy
	// Serve is free for the caller: who serves the ring.
	Serve any

	running    int
	threads    map[threadKey]*Thread
	head, tail *Thread // the threads that may be fed, in turn
	listed     int
	touched    bool
}

type threadKey struct{ channel, host string }

// channel counts deliveries over all rings.
type channel struct {
	name    string
	running int
	threads int
	blocked []*Ring // those that met its limit
}

// Thread is the vertices of one channel and host.
type Thread struct {
	Ring    *Ring
	Host    string // as it was first spelt
	Trouble string // what the host's last failure said
	Serve   any    // free for the caller: who served it last

	channel *channel
	ready   []*Vertex // may be delivered now: a heap by age with ageorder
	count   int       // vertices in any state
	running int

	next   int64 // the host is in trouble until then, milliseconds; 0: it is not
	slot   int32
	tries  uint16 // failures in a row
	step   uint8
	epoch  uint32  // counts changes between trouble and none
	failed int64   // when the host last failed
	probe  *Vertex // runs while the host is in trouble

	listed     bool
	prev, succ *Thread
}

// Channel is the thread's channel.
func (t *Thread) Channel() string { return t.channel.name }

// Tries is how often in a row the host failed, 0 if it is not in trouble.
func (t *Thread) Tries() int { return int(t.tries) }

// Until is when a host in trouble is probed next, zero if it is not in trouble.
func (t *Thread) Until() time.Time {
	if t.next == 0 {
		return time.Time{}
	}
	return time.UnixMilli(t.next)
}

// Ring finds a ring by its key or makes it.
func (c *Core) Ring(key string, p Policy) *Ring {
	r := c.rings[key]
	if r == nil {
		r = &Ring{Key: key, Policy: p, threads: map[threadKey]*Thread{}}
		c.rings[key] = r
	}
	return r
}

// Rings calls fn for each ring.
func (c *Core) Rings(fn func(*Ring)) {
	for _, r := range c.rings {
		fn(r)
	}
}

// Remove forgets a ring that has no threads and tells whether it did.
func (c *Core) Remove(r *Ring) bool {
	if len(r.threads) > 0 {
		return false
	}
	delete(c.rings, r.Key)
	return true
}

// Threads calls fn for each thread of the ring.
func (r *Ring) Threads(fn func(*Thread)) {
	for _, t := range r.threads {
		fn(t)
	}
}

// Running is how many deliveries the ring has under way.
func (r *Ring) Running() int { return r.running }

// Hungry tells whether a thread of the ring has something to deliver now, and no
// limit is known to stand against it.
func (r *Ring) Hungry() bool {
	if r.Policy.MaxRing > 0 && r.running >= r.Policy.MaxRing {
		return false
	}
	for t := r.head; t != nil; t = t.succ {
		if !r.channelFull(t) {
			return true
		}
	}
	return false
}

func (r *Ring) channelFull(t *Thread) bool {
	return r.Policy.MaxChannel > 0 && t.channel.running >= r.Policy.MaxChannel
}

// Touch has Touched give the ring.
func (c *Core) Touch(r *Ring) {
	if !r.touched {
		r.touched = true
		c.touched = append(c.touched, r)
	}
}

// Touched gives a ring that something changed for since it was last given, nil if
// there is none.
func (c *Core) Touched() *Ring {
	if len(c.touched) == 0 {
		return nil
	}
	last := len(c.touched) - 1
	r := c.touched[last]
	c.touched = c.touched[:last]
	r.touched = false
	return r
}

func (c *Core) thread(r *Ring, name, host string) *Thread {
	t := r.threads[keyOf(name, host)]
	if t != nil {
		return t
	}
	// The caller's strings may be parts of something large.
	name, host = strings.Clone(name), strings.Clone(host)
	ch := c.channels[name]
	if ch == nil {
		ch = &channel{name: name}
		c.channels[name] = ch
	}
	ch.threads++
	t = &Thread{Ring: r, Host: host, channel: ch, slot: -1}
	r.threads[keyOf(name, host)] = t
	return t
}

// keyOf is the key of a thread; hosts are one whatever their case (RFC 1035 §2.3.3).
func keyOf(channel, host string) threadKey { return threadKey{channel, strings.ToLower(host)} }

// release counts a vertex less; a thread without any goes.
func (c *Core) release(t *Thread) {
	t.count--
	if t.count > 0 {
		return
	}
	c.threads.remove(t)
	t.Ring.unlist(t)
	delete(t.Ring.threads, keyOf(t.channel.name, t.Host))
	t.channel.threads--
	if t.channel.threads == 0 {
		delete(c.channels, t.channel.name)
	}
	c.Touch(t.Ring)
}

// mayRun tells whether a vertex of the thread may be started, but for the limits of
// ring and channel.
func (t *Thread) mayRun(ms int64) bool {
	if len(t.ready) == 0 || t.Ring.Policy.MaxThread > 0 && t.running >= t.Ring.Policy.MaxThread {
		return false
	}
	return t.next == 0 || t.probe == nil && t.next <= ms
}

// update puts the thread into its ring's turn, or takes it out.
func (c *Core) update(t *Thread, ms int64) {
	if !t.mayRun(ms) {
		t.Ring.unlist(t)
		return
	}
	if !t.listed {
		t.Ring.list(t)
	}
	c.Touch(t.Ring)
}

func (r *Ring) list(t *Thread) {
	t.listed, t.prev, t.succ = true, r.tail, nil
	if r.tail != nil {
		r.tail.succ = t
	} else {
		r.head = t
	}
	r.tail = t
	r.listed++
}

func (r *Ring) unlist(t *Thread) {
	if !t.listed {
		return
	}
	if t.prev != nil {
		t.prev.succ = t.succ
	} else {
		r.head = t.succ
	}
	if t.succ != nil {
		t.succ.prev = t.prev
	} else {
		r.tail = t.prev
	}
	t.listed, t.prev, t.succ = false, nil, nil
	r.listed--
}

// Take starts the next delivery of the ring: threads take turns. nil: nothing is
// ready, or a limit is reached.
func (c *Core) Take(r *Ring, now time.Time) *Vertex {
	ms := now.UnixMilli()
	for range r.listed {
		if r.Policy.MaxRing > 0 && r.running >= r.Policy.MaxRing {
			return nil
		}
		t := r.head
		r.unlist(t)
		if !t.mayRun(ms) {
			continue
		}
		if r.channelFull(t) {
			r.list(t)
			t.channel.block(r)
			continue
		}
		v := t.pick(c)
		c.start(v, ms)
		if t.mayRun(ms) {
			r.list(t)
		}
		return v
	}
	return nil
}

// TakeMore gives another vertex of a thread to an agent that queues it behind the
// one it works on: it counts for no limit until Promote. A thread in trouble gives
// none.
func (c *Core) TakeMore(t *Thread, now time.Time) *Vertex {
	if len(t.ready) == 0 || t.next != 0 {
		return nil
	}
	v := t.pick(c)
	v.queued = true
	c.start(v, now.UnixMilli())
	c.update(t, now.UnixMilli())
	return v
}

// Promote counts a vertex of TakeMore: the agent has come to it.
func (c *Core) Promote(v *Vertex, now time.Time) {
	if v.state == running && v.queued {
		v.queued = false
		v.Started = now.UnixMilli()
		v.Thread.busy(1)
		c.update(v.Thread, now.UnixMilli())
	}
}

// busy counts deliveries in thread, ring and channel.
func (t *Thread) busy(n int) {
	t.running += n
	t.Ring.running += n
	t.channel.running += n
}

func (ch *channel) block(r *Ring) {
	for _, b := range ch.blocked {
		if b == r {
			return
		}
	}
	ch.blocked = append(ch.blocked, r)
}

func (c *Core) start(v *Vertex, ms int64) {
	t := v.Thread
	v.state, v.Started, v.epoch = running, ms, t.epoch
	for i := range v.Recipients {
		v.Recipients[i].Result = None
	}
	if t.next != 0 {
		t.probe = v
	}
	if !v.queued {
		t.busy(1)
	}
}

// Stop parks a running vertex: its attempt is over. The host's state is not touched.
func (c *Core) Stop(v *Vertex, now time.Time) {
	if v.state != running {
		panic("thread: Stop for a vertex that does not run")
	}
	t := v.Thread
	v.state = parked
	if t.probe == v {
		t.probe = nil
	}
	if !v.queued {
		t.busy(-1)
	}
	v.queued = false
	for _, r := range t.channel.blocked {
		c.Touch(r)
	}
	t.channel.blocked = t.channel.blocked[:0]
	c.update(t, now.UnixMilli())
	c.Touch(t.Ring)
}

// pick takes a ready vertex out of the thread: the oldest, or any. A host that
// failed is probed with any one, so that one message cannot block the rest (M28).
func (t *Thread) pick(c *Core) *Vertex {
	i := 0
	if !t.Ring.Policy.AgeOrder || t.tries > 1 {
		i = c.rand.IntN(len(t.ready))
	}
	v := t.ready[i]
	t.dropReady(v)
	return v
}

func (t *Thread) pushReady(v *Vertex) {
	if t.Ring.Policy.AgeOrder {
		heap.Push((*byAge)(t), v)
		return
	}
	(*byAge)(t).Push(v)
}

func (t *Thread) dropReady(v *Vertex) {
	if v.ready < 0 {
		return
	}
	if t.Ring.Policy.AgeOrder {
		heap.Remove((*byAge)(t), int(v.ready))
		return
	}
	b := (*byAge)(t)
	b.Swap(int(v.ready), b.Len()-1)
	b.Pop()
}

// byAge is a thread's ready list as a heap: oldest message first.
type byAge Thread

func (b *byAge) Len() int           { return len(b.ready) }
func (b *byAge) Less(i, j int) bool { return b.ready[i].Message.Stamp < b.ready[j].Message.Stamp }
func (b *byAge) Swap(i, j int) {
	b.ready[i], b.ready[j] = b.ready[j], b.ready[i]
	b.ready[i].ready, b.ready[j].ready = int32(i), int32(j)
}

func (b *byAge) Push(x any) {
	v := x.(*Vertex)
	v.ready = int32(len(b.ready))
	b.ready = append(b.ready, v)
}

func (b *byAge) Pop() any {
	last := len(b.ready) - 1
	v := b.ready[last]
	b.ready[last] = nil
	b.ready = b.ready[:last]
	v.ready = -1
	return v
}
