package thread

import (
	"slices"
	"time"
)

// Ring is the threads that one kind of agent serves.
type Ring struct {
	Key    string
	Policy Policy
	// Serve is free for the caller: who serves the ring.
	Serve any

	core    *Core
	running int
	places  places
	threads map[threadKey]*Thread
	turn    turn
	first   bool     // in Core.first
	touched bool     // in Core.touched
	channel *channel // of its threads
	mixed   bool     // not of all of them
	tokens  bucket
	wake    int64 // when there is a token, if it is waited for
	slot    int32 // place in the agenda, -1: not there
}

// channel counts deliveries over all rings.
type channel struct {
	name    string
	running int
	places  places
	threads int
	blocked []*Ring // those that met its limit; who waits longest is first
}

// turns is a queue of rings.
type turns struct {
	list []*Ring
	next int
}

func (q *turns) push(r *Ring) { q.list = append(q.list, r) }

// pop returns the ring that came first, nil if there is none.
func (q *turns) pop() *Ring {
	if q.next == len(q.list) {
		q.list, q.next = q.list[:0], 0
		return nil
	}
	r := q.list[q.next]
	q.list[q.next] = nil
	q.next++
	return r
}

// Ring finds a ring by its key or makes it.
func (c *Core) Ring(key string, p Policy) *Ring {
	r := c.rings[key]
	if r == nil {
		r = &Ring{core: c, Key: key, Policy: p, threads: map[threadKey]*Thread{}, slot: -1}
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

// Remove forgets a ring that has no threads and reports whether it did. One that waits for
// a token stays until it has it; Touched gives it then.
func (c *Core) Remove(r *Ring) bool {
	if len(r.threads) > 0 {
		return false
	}
	if free := r.free(); free > c.now {
		r.wake = free
		c.throttles.set(r)
		return false
	}
	c.throttles.remove(r)
	delete(c.rings, r.Key)
	return true
}

// Follow gives a ring another policy, and has its threads wait, take turns and get too old
// by it.
func (c *Core) Follow(r *Ring, p Policy, now time.Time) {
	r.Policy = p
	r.tokens.follow(p.Rate, c.ms(now))
	// The caller sets anew how long it waits for a token.
	c.throttles.remove(r)
	list := make([]*Thread, 0, len(r.threads))
	r.Threads(func(t *Thread) { list = append(list, t) })
	for _, t := range list {
		c.Move(t, r, now)
	}
	c.Touch(r)
}

// Threads calls fn for each thread of the ring.
func (r *Ring) Threads(fn func(*Thread)) {
	for _, t := range r.threads {
		fn(t)
	}
}

// Running returns how many deliveries the ring has under way.
func (r *Ring) Running() int { return r.running }

// Until is when the ring's rate allows another delivery, zero if that is now.
func (r *Ring) Until(now time.Time) time.Time {
	if free := r.free(); free > r.core.ms(now) {
		return r.core.time(free)
	}
	return time.Time{}
}

// Hungry reports whether a thread of the ring has something to deliver now, and no
// limit is known to stand against it. If it is the channel's, Touched gives the ring when
// there is room.
func (r *Ring) Hungry() bool {
	if r.slot >= 0 || r.Policy.MaxRing > 0 && r.running >= r.Policy.MaxRing {
		return false
	}
	hungry := false
	r.inTurn(r.opened(), func(t *Thread) bool {
		if hungry = !r.channelFull(t); !hungry {
			t.channel.block(r)
		}
		return !hungry && r.mixed
	})
	return hungry
}

// own takes note of the channel of a thread that the ring gets.
func (r *Ring) own(t *Thread) {
	if len(r.threads) == 0 {
		r.channel, r.mixed = t.channel, false
	}
	r.mixed = r.mixed || r.channel != t.channel
}

func (r *Ring) channelFull(t *Thread) bool {
	return r.Policy.MaxChannel > 0 && (t.channel.running >= r.Policy.MaxChannel || r.mixed && t.tierNow() >= r.closed(t.channel))
}

// opened returns the first tier that may not begin a delivery, as far as one can say for all
// threads.
func (r *Ring) opened() uint8 {
	if r.mixed || r.channel == nil {
		return r.places.closed(r.Policy.MaxUnproven)
	}
	closed := r.closed(r.channel)
	if closed < r.places.closed(r.Policy.MaxUnproven) {
		r.channel.block(r)
	}
	return closed
}

// Touch has Touched give the ring.
func (c *schedule) Touch(r *Ring) {
	if !r.touched {
		r.touched = true
		c.touched.push(r)
	}
}

// Touched returns a ring that something changed for since it was last given, nil if
// there is none. Who waits for room in a channel comes before who has new mail.
func (c *schedule) Touched() *Ring {
	if r := c.first.pop(); r != nil {
		r.first = false
		return r
	}
	r := c.touched.pop()
	if r != nil {
		r.touched = false
	}
	return r
}

// update puts the thread into its ring's turn, or takes it out.
func (c *schedule) update(t *Thread, ms int64) {
	c.stand(t)
	c.quiet(t, ms)
	c.alarm(t, ms)
	if !t.mayRun(ms) {
		t.Ring.unlist(t)
		return
	}
	if t.misplaced() {
		t.Ring.unlist(t)
	}
	if !t.listed {
		t.Ring.list(t)
	}
	c.Touch(t.Ring)
}

// Take starts the next delivery of the ring: threads take turns. nil: nothing is
// ready, or a limit is reached.
func (c *Core) Take(r *Ring, now time.Time) *Vertex {
	if r.Policy.MaxRing > 0 && r.running >= r.Policy.MaxRing {
		return nil
	}
	ms := c.at(now)
	if c.throttled(r, ms) {
		return nil
	}
	var v *Vertex
	closed := r.opened()
	r.inTurn(closed, func(t *Thread) bool {
		if !t.mayRun(ms) {
			r.unlist(t)
			return true
		}
		if r.channelFull(t) {
			t.channel.block(r)
			return r.mixed
		}
		r.unlist(t)
		v = t.pick(c, ms, closed)
		if v == nil {
			c.update(t, ms)
			return true
		}
		r.turn.class = 1 - t.class
		c.start(v, ms)
		t.channel.served(r)
		if t.mayRun(ms) {
			r.list(t)
		}
		c.alarm(t, ms)
		return false
	})
	// What is left waits for a token, not for an agent.
	c.throttled(r, ms)
	return v
}

// TakeMore gives another vertex of a thread to an agent that queues it behind the
// one it works on: it counts for no limit until Promote. A thread in trouble gives
// none.
func (c *Core) TakeMore(t *Thread, now time.Time) *Vertex {
	ms := c.ms(now)
	if t.ready == 0 || t.next != 0 || t.paused || t.suspended != nil || max(t.free(), t.Ring.free()) > ms {
		return nil
	}
	v := t.pick(c, ms, t.Ring.closed(t.channel))
	if v == nil {
		c.update(t, c.ms(now))
		return nil
	}
	v.set(queued, true)
	c.start(v, c.ms(now))
	c.update(t, c.ms(now))
	return v
}

// Promote counts a vertex of TakeMore: the agent has come to it.
func (c *Core) Promote(v *Vertex, now time.Time) {
	if v.state == running && v.is(queued) {
		v.set(queued, false)
		v.wake = c.ms(now)
		v.Thread.busy(v, 1)
		c.update(v.Thread, c.ms(now))
	}
}

// busy counts deliveries in thread, ring and channel.
func (t *Thread) busy(v *Vertex, n int) {
	o := v.Message.Origin()
	t.taken[o] += int32(n)
	t.occupy(o, n)
	t.running += n
	t.Ring.running += n
	t.channel.running += n
	t.peak = max(t.peak, int32(t.running))
}

func (ch *channel) block(r *Ring) {
	if !slices.Contains(ch.blocked, r) {
		ch.blocked = append(ch.blocked, r)
	}
}

// served has a ring wait behind those that wait already.
func (ch *channel) served(r *Ring) {
	if i := slices.Index(ch.blocked, r); i >= 0 {
		ch.blocked = slices.Delete(ch.blocked, i, i+1)
	}
}

// room has the rings that met the channel's limit looked at, in their turn. Those that
// have nothing for it any more are forgotten.
func (c *schedule) room(ch *channel) {
	list := ch.blocked[:0]
	for _, r := range ch.blocked {
		if !r.wants(ch) {
			continue
		}
		list = append(list, r)
		if !r.first {
			r.first = true
			c.first.push(r)
		}
	}
	clear(ch.blocked[len(list):])
	ch.blocked = list
}

// wants reports whether a thread of the ring may go but for the channel's limit.
func (r *Ring) wants(ch *channel) bool {
	wants := false
	r.inTurn(tiers, func(t *Thread) bool {
		wants = t.channel == ch
		return !wants && r.mixed
	})
	return wants
}

func (c *Core) start(v *Vertex, ms int64) {
	t := v.Thread
	c.vertices.remove(v)
	v.state, v.wake, v.mark = running, ms, t.epoch
	v.set(spared, false)
	list := v.Recipients()
	for i := range list {
		list[i].Result = None
	}
	t.attempts++
	t.tokens.take(t.Ring.Policy.HostRate, ms)
	t.Ring.tokens.take(t.Ring.Policy.Rate, ms)
	if t.next != 0 {
		t.probe = v
	}
	if !v.is(queued) {
		t.busy(v, 1)
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
	if !v.is(queued) {
		t.busy(v, -1)
	}
	v.set(queued, false)
	c.room(t.channel)
	c.update(t, c.ms(now))
	c.Touch(t.Ring)
}
