package scheduler

import (
	"slices"
	"time"

	"zmailer/internal/stage/scheduler/store"
	"zmailer/internal/stage/scheduler/thread"
)

// Places are the agent processes that there may be at once (maxta). Rings that want one
// more than there is room for wait in engine.starved; who has the fewest comes first.

// noPlace tells whether a crew has to wait for a place, and has it do so.
func (e *engine) noPlace(c *crew) bool {
	limit := c.settings.MaxTA
	full := limit > 0 && len(e.agents)+e.starting >= limit
	if limit <= 0 || !full && !e.poorer(c) {
		return false
	}
	if !c.waiting {
		c.waiting = true
		e.starved = append(e.starved, c.ring)
	}
	if full {
		e.reclaim(c)
	}
	return true
}

// poorer tells whether a crew with fewer agents waits for a place, or one with as many
// waits longer.
func (e *engine) poorer(than *crew) bool {
	ahead := true
	for _, r := range e.starved {
		c, _ := r.Serve.(*crew)
		switch {
		case c == nil:
		case c == than:
			ahead = false
		case len(c.agents) < len(than.agents), ahead && len(c.agents) == len(than.agents):
			return true
		}
	}
	return false
}

// satisfied takes note that a crew no longer waits for a place; those behind it may go.
func (e *engine) satisfied(c *crew) {
	if c.waiting {
		c.waiting = false
		e.starved = slices.DeleteFunc(e.starved, func(r *thread.Ring) bool { return r == c.ring })
		e.placeFree()
	}
}

// reclaim makes room for an agent of a crew: the one that is idle the longest ends, or
// one of a crew that has more agents by two takes nothing more and ends when it is done.
func (e *engine) reclaim(starved *crew) {
	var oldest *agent
	rich := starved
	for a := range e.agents {
		switch {
		case !a.closing:
		case len(a.deliveries) > 0 && !a.leftAt.Add(serves).After(e.now):
			continue // its last delivery takes long; it is not waited for
		default:
			// A place becomes free soon. If not, it is looked again.
			if len(a.deliveries) > 0 {
				e.lookForPlace(starved, a.leftAt.Add(serves))
			}
			return
		}
		if a.crew.staying() > rich.staying() {
			rich = a.crew
		}
		idle := len(a.deliveries) == 0 && !a.idle.IsZero() && a.slots > 0 && !a.crew.ring.Hungry()
		if idle && (oldest == nil || a.idle.Before(oldest.idle)) {
			oldest = a
		}
	}
	switch {
	case oldest != nil:
		oldest.close(e)
	case rich.staying() == 1 && len(starved.agents) == 0:
		e.takeTurns(starved)
	case rich.staying() > len(starved.agents)+1:
		var least *agent
		for _, a := range rich.agents {
			if !a.closing && (least == nil || len(a.deliveries) < len(least.deliveries)) {
				least = a
			}
		}
		least.leave(e)
		e.lookForPlace(starved, e.now.Add(serves))
	}
}

// staying is how many agents of a crew still take deliveries.
func (c *crew) staying() (n int) {
	for _, a := range c.agents {
		if !a.closing {
			n++
		}
	}
	return n
}

// lookForPlace has a crew look for a place again at a time.
func (e *engine) lookForPlace(c *crew, at time.Time) {
	c.grace = store.Earliest(c.grace, at)
	e.wake(at)
}

// serves is how long an agent that is the only one of its crew may keep its place when a
// crew that has none wants it: where maxta is less than there are clauses with mail, they
// take turns.
const serves = 10 * time.Second

// takeTurns gives the place of a crew's only agent to a crew that has none, when the agent
// has had it for long.
func (e *engine) takeTurns(starved *crew) {
	var oldest *agent
	for a := range e.agents {
		if !a.closing && a.crew.staying() == 1 && (oldest == nil || a.born.Before(oldest.born)) {
			oldest = a
		}
	}
	if oldest == nil {
		return
	}
	if at := oldest.born.Add(serves); at.After(e.now) {
		e.lookForPlace(starved, at)
		return
	}
	oldest.leave(e)
	e.lookForPlace(starved, e.now.Add(serves))
}

// placeFree has the crews that wait for a place look again.
func (e *engine) placeFree() {
	for _, r := range e.starved {
		e.core.Touch(r)
	}
}
