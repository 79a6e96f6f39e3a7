package scheduler

import (
	"cmp"
	"slices"
	"time"

	"zmailer/internal/scheduler/thread"
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
		if a.closing {
			return // a place becomes free soon
		}
		if len(a.crew.agents) > len(rich.agents) {
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
	case len(rich.agents) == 1 && len(starved.agents) == 0:
		e.takeTurns(starved)
	case len(rich.agents) > len(starved.agents)+1:
		slices.MinFunc(rich.agents, func(a, b *agent) int { return cmp.Compare(len(a.deliveries), len(b.deliveries)) }).leave(e)
	}
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
		if len(a.crew.agents) == 1 && (oldest == nil || a.born.Before(oldest.born)) {
			oldest = a
		}
	}
	if oldest == nil {
		return
	}
	if at := oldest.born.Add(serves); at.After(e.now) {
		starved.grace = earliest(starved.grace, at)
		e.wake(at)
		return
	}
	oldest.leave(e)
}

// placeFree has the crews that wait for a place look again.
func (e *engine) placeFree() {
	for _, r := range e.starved {
		e.core.Touch(r)
	}
}
