package thread

import "time"

// quiet pauses a thread again that Kick has let go, when nothing is left of that or the
// host has failed.
func (c *schedule) quiet(t *Thread, ms int64) {
	if t.pausing && t.running == 0 && (t.ready == 0 || t.next > ms) {
		t.paused = true
	}
}

// Let has a paused thread deliver what may be delivered now, as Kick does, without an end
// to its other waits.
func (c *Core) Let(t *Thread, now time.Time) {
	t.paused = false
	c.update(t, c.ms(now))
}

// Kick ends the waits of a thread: its host is to be tried now.
func (c *Core) Kick(t *Thread, now time.Time) {
	ms := c.ms(now)
	t.slow = 0
	c.clear(t, now)
	for _, v := range t.list {
		v.set(blamed, false)
		switch {
		case v.state == parked:
			v.next = 0 // its deferral is being written down
		case v.state == waiting && !v.isReady():
			v.next = 0
			t.pushReady(v)
			c.arm(v, ms)
		}
	}
	t.paused = false
	c.update(t, ms)
}

// Move puts a thread into a ring, or follows a policy that has changed if it is there.
// Deliveries under way end as they are. If the ring has a thread of that channel and
// host already, that one takes what does not run.
func (c *Core) Move(t *Thread, to *Ring, now time.Time) {
	ms, from, key := c.ms(now), t.Ring, keyOf(t.channel.name, t.Host)
	from.unlist(t)
	for t.ready > 0 {
		t.dropReady(t.list[t.ready-1])
	}
	other := to.threads[key]
	switch {
	case other == nil:
		delete(from.threads, key)
		to.own(t)
		to.threads[key] = t
		from.running -= t.running
		to.running += t.running
		t.weigh(-1)
		t.Ring = to
		t.weigh(1)
	case other != t:
		c.merge(t, other, ms)
		c.Touch(from)
		return
	}
	if to.Policy.QueueOnly != t.pausing {
		t.pausing, t.paused = to.Policy.QueueOnly, to.Policy.QueueOnly
	}
	t.follow()
	c.settle(t, t.list, ms)
	c.Touch(from)
	c.Touch(to)
}

// follow takes over what the thread keeps of its ring's policy. Nothing is ready.
func (t *Thread) follow() {
	p := &t.Ring.Policy
	for i := range t.orders {
		t.orders[i].byAge = p.AgeOrder
		if t.reported != nil {
			t.reported[i].byAge = p.AgeOrder
		}
	}
	t.limit = int32(min(int(t.limit), p.most()))
	if !t.met {
		t.limit = max(t.limit, p.start())
	}
}

// settle has vertices wait that came to a thread or whose policy changed.
func (c *schedule) settle(t *Thread, list []*Vertex, ms int64) {
	t.tokens.follow(t.Ring.Policy.HostRate, ms)
	// Those that become ready change their places in the list.
	todo := make([]*Vertex, 0, len(list))
	latest := ms + t.Ring.Policy.longest()
	if t.next > latest && !t.asked {
		t.next = latest // update has it looked at then
	}
	for _, v := range list {
		if v.Attempts > 0 {
			v.next = min(v.next, latest)
		}
		v.step = min(v.step, uint8(len(t.Ring.Policy.Retries)))
		if v.state == waiting {
			todo = append(todo, v)
		}
	}
	for _, v := range todo {
		if v.next <= ms || v.is(blamed) {
			t.pushReady(v)
		}
		c.arm(v, ms)
	}
	c.update(t, ms)
}

// merge moves what does not run from one thread to another of the same host.
func (c *Core) merge(t, to *Thread, ms int64) {
	var list []*Vertex
	for _, v := range t.list {
		if v.state != running {
			list = append(list, v)
		}
	}
	if t.next > to.next {
		to.hostState.follow(&t.hostState)
	}
	to.slow, to.tokens.next = max(to.slow, t.slow), max(to.tokens.next, t.tokens.next)
	t.slow, t.tokens = 0, bucket{}
	for _, v := range list {
		tried := v.attempted()
		t.remove(v)
		to.take(v)
		if tried {
			v.fails--
		}
	}
	c.settle(to, list, ms)
	c.retire(t)
}
