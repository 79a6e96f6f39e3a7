package thread

import "time"

// Suspension is an operator's decision that no delivery begins.
type Suspension struct {
	Order, Who, Reason string
	Subject            string    // what it is about, in words
	Since, Until       time.Time // Until zero: until it is resumed
}

// Gate decides which deliveries may begin. It is asked when a thread or a vertex comes to be
// and by SetGate; the decision is kept, so that taking a vertex costs one look at its thread.
type Gate interface {
	// Thread returns the suspension of all deliveries of a channel to a host, nil if there is
	// none.
	Thread(channel, host string) *Suspension
	// Vertex returns the suspension that is about a vertex but not about its whole thread, nil
	// if there is none.
	Vertex(v *Vertex) *Suspension
}

// gates is what the core has of its gate.
type gates struct {
	gate Gate // nil: everything may begin
	// sifting: the gate has decided about single vertices.
	sifting bool
}

// SetGate has a gate decide from now on, nil: none. vertices: it may suspend single ones.
// Deliveries under way end as they are. What was suspended gets one attempt before it can
// expire.
func (c *Core) SetGate(g Gate, vertices bool, now time.Time) {
	sift := vertices || c.sifting
	c.gate, c.sifting = g, vertices
	ms := c.ms(now)
	var list []*Thread
	for t := range c.All() {
		list = append(list, t)
	}
	for _, t := range list {
		var s *Suspension
		if g != nil {
			s = g.Thread(t.channel.name, t.Host)
		}
		was := t.suspended
		if t.suspended = s; sift {
			for _, v := range append([]*Vertex(nil), t.list...) {
				c.withhold(v, ms)
			}
		}
		if was != nil && s == nil {
			for _, v := range t.list {
				c.spare(v, ms)
			}
		}
		if was != s || sift {
			c.update(t, ms)
		}
	}
}

// Ask asks the gate about the vertices of a message again.
func (c *Core) Ask(m *Message, now time.Time) {
	ms := c.ms(now)
	m.Vertices(func(v *Vertex) {
		c.withhold(v, ms)
		c.update(v.Thread, ms)
	})
}

// Suspended returns the suspension of a vertex, nil if there is none.
func (c *Core) Suspended(v *Vertex) *Suspension {
	if v.Thread.suspended != nil {
		return v.Thread.suspended
	}
	if c.gate == nil || !v.is(withheld) {
		return nil
	}
	return c.gate.Vertex(v)
}

// withhold asks the gate about a vertex.
func (c *schedule) withhold(v *Vertex, ms int64) {
	on := c.gate != nil && c.sifting && c.gate.Vertex(v) != nil
	if on == v.is(withheld) {
		return
	}
	if on && v.state == waiting {
		v.Thread.dropReady(v)
	}
	v.Thread.withhold(v, on)
	switch {
	case on && v.state == waiting:
		c.arm(v, ms)
	case !on:
		c.spare(v, ms)
	}
}

// withhold notes whether a vertex may not begin.
func (t *waitList) withhold(v *Vertex, on bool) {
	if v.set(withheld, on); on {
		t.withheld++
	} else {
		t.withheld--
	}
}

// spare goes on with a vertex that was suspended. If it is too old it is tried once before
// it expires.
func (c *schedule) spare(v *Vertex, ms int64) {
	if v.state != waiting || v.is(withheld) {
		return
	}
	if v.isExpired(ms) {
		v.set(spared, true)
		v.fails = v.Thread.fails
	}
	if v.next <= ms || v.is(blamed) {
		v.Thread.pushReady(v)
	}
	c.arm(v, ms)
}

// suspended reports whether the vertex may not begin.
func (v *Vertex) suspended() bool { return v.Thread.suspended != nil || v.is(withheld) }

// isSpared reports whether the vertex is to be tried, or its host, before it expires.
func (v *Vertex) isSpared() bool { return v.is(spared) && v.Thread.fails == v.fails }
