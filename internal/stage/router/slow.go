package router

import (
	"context"
	"errors"
	"time"
)

// Routing a message takes less than a millisecond, unless it has to wait: for a server or
// a program that is asked for a key, for a file that is being written. One that has begun
// to wait and is not routed soon after leaves its worker's place to another worker and
// goes on beside the workers, so that other mail has them. Such slots are bounded: a
// message for which there is none is given back to router/, and is routed in one when one
// is free. Ordinary mail never waits for them (docs/notes/slow-lookups.md).

const (
	// patience is how long a message that waits keeps its worker.
	patience = 100 * time.Millisecond
	// slowSlots is how many messages may wait for their lookups at the same time.
	slowSlots = 16
)

var (
	// errStopped is why a message is given back when the router stops.
	errStopped = errors.New("the router stops")
	// errNoSlot is why it is when too many messages wait for their lookups already.
	errNoSlot = errors.New("too many messages wait for lookups")
)

// slots are those of messages that wait for their lookups. pool.mu guards them.
type slots struct {
	taken int
	lone  bool // the one that is there has crashed routers: nothing else goes there
	held  bool // nothing goes there until it is empty, for one that has crashed routers
}

func (p *slots) free() bool { return p.taken < slowSlots && !p.lone && !p.held }

// turn is a worker with the message that it routes. It is the Waiter of its lookups.
type turn struct {
	d         *dispatcher
	base      context.Context
	ctx       context.Context // of the message's lookups
	cancel    context.CancelCauseFunc
	successor func() // works in its place
	leads     bool
	timer     *time.Timer

	// pool.mu guards what follows.
	tried bool // the message has crashed routers
	waits bool // the timer runs
	slow  bool // the message has a place of its own
}

func newTurn(d *dispatcher, base context.Context, successor func()) *turn {
	t := &turn{d: d, base: base, successor: successor}
	t.ctx, t.cancel = context.WithCancelCause(base)
	return t
}

// begin is called before a message is routed, end behind it.
func (t *turn) begin(o job) {
	if !o.slow && !o.tried {
		return
	}
	t.d.mu.Lock()
	defer t.d.mu.Unlock()
	if t.tried = o.tried; o.slow {
		t.step()
	}
}

// end reports whether the message had a place of its own.
func (t *turn) end() (slow bool) {
	d := t.d
	d.mu.Lock()
	defer d.mu.Unlock()
	if t.waits {
		t.timer.Stop()
	}
	if t.slow {
		d.slots.taken--
		d.slots.lone = d.slots.lone && !t.tried
	}
	slow = t.slow
	t.tried, t.waits, t.slow = false, false, false
	if t.ctx.Err() != nil && t.base.Err() == nil {
		t.ctx, t.cancel = context.WithCancelCause(t.base)
	}
	return slow
}

// step goes aside: another worker comes. pool.mu is held.
func (t *turn) step() {
	t.slow = true
	t.d.slots.taken++
	t.d.slots.lone = t.d.slots.lone || t.tried
	t.d.workers.Go(t.successor)
}

// Busy gives the lead away, if the worker has it: what it does takes longer than others
// should wait.
func (t *turn) Busy() {
	if t.leads {
		t.leads = false
		t.d.lead.Unlock()
	}
}

// Waits is called before the message waits for the first time, or again.
func (t *turn) Waits() {
	t.Busy()
	t.d.mu.Lock()
	defer t.d.mu.Unlock()
	if t.waits || t.slow {
		return
	}
	t.waits = true
	if t.timer == nil {
		t.timer = time.AfterFunc(patience, t.late)
		return
	}
	t.timer.Reset(patience)
}

// late has a message go aside that has waited for too long. A call that comes late itself
// may meet the next message that waits: that one goes a little too early.
func (t *turn) late() {
	d := t.d
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case !t.waits || t.slow:
	case d.slots.free():
		t.step()
		if d.idle {
			d.hints.Interrupt() // others may have waited for this one
		}
	default:
		t.cancel(errNoSlot)
	}
}

// waitlist are the messages that were given back because there was no place for them.
type waitlist struct {
	queue []job
	names map[string]struct{}
}

func (c *waitlist) has(name string) bool {
	if len(c.queue) == 0 {
		return false
	}
	_, ok := c.names[name]
	return ok
}

func (c *waitlist) add(o job) {
	if c.has(o.name) {
		return
	}
	if c.names == nil {
		c.names = map[string]struct{}{}
	}
	c.names[o.name] = struct{}{}
	c.queue = append(c.queue, o)
}

func (c *waitlist) take() {
	delete(c.names, c.queue[0].name)
	c.queue = c.queue[1:]
}

// nextSlow returns the first message for which there was no place, if there is one now.
func (d *dispatcher) nextSlow() (o job, ok bool) {
	if len(d.waitlist.queue) == 0 {
		return job{}, false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.waitlist.queue[0], d.slots.free()
}

// nextLast returns the first message that has crashed routers, if it is to be routed now. ok
// is false and wait true if nothing else is to begin before.
func (d *dispatcher) nextLast(waits bool) (o job, ok, wait bool) {
	due := len(d.suspects.queue) > 0 && d.sinceLast >= turns-1 && d.now().Sub(d.suspects.since[d.suspects.queue[0].name]) >= lastWait
	d.mu.Lock()
	defer d.mu.Unlock()
	// Those that wait for their lookups may take minutes: others are routed meanwhile, but
	// no more go there, so that they end.
	d.slots.held = due && d.slots.taken > 0
	switch {
	case len(d.suspects.queue) == 0 || waits && !due:
		return job{}, false, false
	case d.running == 0:
		return d.suspects.queue[0], true, false
	}
	return job{}, false, d.slots.taken == 0
}

// lonely reports whether a message that has crashed routers is routed and nothing may begin
// beside it. One that waits for lookups does not keep all others waiting.
func (d *dispatcher) lonely() bool {
	if !d.alone {
		return false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return !d.slots.lone
}
