package agents

import (
	"slices"
	"time"
)

// places are the groups that want one more agent than maxta allows, in the order in which
// they came. The group with the fewest agents gets the next place.
type places struct {
	pool    *Pool
	waiting []*Group
}

// poorer reports whether a group with fewer agents waits for a place, or one with as many
// waits longer.
func (w *places) poorer(than *Group) bool {
	ahead := true
	for _, g := range w.waiting {
		switch {
		case g == than:
			ahead = false
		case len(g.agents) < len(than.agents), ahead && len(g.agents) == len(than.agents):
			return true
		}
	}
	return false
}

// noPlace reports whether a group has to wait for a place, and has it do so.
func (w *places) noPlace(g *Group) bool {
	p := w.pool
	limit := g.settings.MaxTA
	full := limit > 0 && len(p.agents)+p.starting >= limit
	if limit <= 0 || !full && !w.poorer(g) {
		return false
	}
	if !g.waiting {
		g.waiting = true
		w.waiting = append(w.waiting, g)
	}
	if full {
		w.reclaim(g)
	}
	return true
}

// satisfied notes that a group no longer waits for a place; those behind it may go.
func (w *places) satisfied(g *Group) {
	if g.waiting {
		g.waiting = false
		w.waiting = slices.DeleteFunc(w.waiting, func(o *Group) bool { return o == g })
		w.placeFree()
	}
}

// placeFree has the groups that wait for a place look again.
func (w *places) placeFree() {
	p := w.pool
	for _, g := range w.waiting {
		p.core.Touch(g.ring)
	}
}

// turnLength is how long an agent that is the only one of its group may keep its place
// when a group that has none wants it: where maxta is less than there are clauses with
// mail, they take turns.
const turnLength = 10 * time.Second

// reclaim makes room for an agent of a group: the one that is idle the longest ends, or
// one of a group that has more agents by two takes nothing more and ends when it is done.
func (w *places) reclaim(starved *Group) {
	p := w.pool
	var oldest *Agent
	rich := starved
	for _, a := range p.agents {
		if a.closing {
			busy, due := len(a.jobs.list) > 0, a.leftAt.Add(turnLength)
			if busy && !due.After(p.now) {
				continue // its last delivery takes long; it is not waited for
			}
			// A place becomes free soon.
			if busy {
				p.LookAgain(starved, due)
			}
			return
		}
		if a.group.staying() > rich.staying() {
			rich = a.group
		}
		idle := len(a.jobs.list) == 0 && !a.idle.IsZero() && a.jobs.slots > 0 && !a.group.ring.Hungry()
		if idle && (oldest == nil || a.idle.Before(oldest.idle)) {
			oldest = a
		}
	}
	switch {
	case oldest != nil:
		oldest.close()
	case rich.staying() == 1 && len(starved.agents) == 0:
		w.takeTurns(starved)
	case rich.staying() > len(starved.agents)+1:
		var least *Agent
		for _, a := range rich.agents {
			if !a.closing && (least == nil || len(a.jobs.list) < len(least.jobs.list)) {
				least = a
			}
		}
		least.leave()
		p.LookAgain(starved, p.now.Add(turnLength))
	}
}

// takeTurns gives the place of a group's only agent to a group that has none, when the
// agent has had it for long.
func (w *places) takeTurns(starved *Group) {
	p := w.pool
	var oldest *Agent
	for _, a := range p.agents {
		if !a.closing && a.group.staying() == 1 && (oldest == nil || a.born.Before(oldest.born)) {
			oldest = a
		}
	}
	if oldest == nil {
		return
	}
	if at := oldest.born.Add(turnLength); at.After(p.now) {
		p.LookAgain(starved, at)
		return
	}
	oldest.leave()
	p.LookAgain(starved, p.now.Add(turnLength))
}
