package sim

import (
	"cmp"
	"slices"
	"time"

	"zmailer/internal/stage/scheduler/thread"
)

// Ring is a ring of the core with its agents, as a clause of scheduler.conf makes them.
type Ring struct {
	Slots    int           // deliveries that an agent does at once; 0: 1
	Overfeed int           // deliveries that a one-slot agent may have queued
	MaxTA    int           // agents of the whole world; 0: no limit
	IdleMax  time.Duration // of an agent; 0: for ever
	Keep     time.Duration // how long an agent keeps a connection; 0: 10s

	ring      *thread.Ring
	agents    []*agent
	starting  bool
	impatient time.Time
	waiting   bool // in World.starved
}

// Running is how many deliveries the ring has under way.
func (r *Ring) Running() int { return r.ring.Running() }

// Agents is how many agents the ring has.
func (r *Ring) Agents() int { return len(r.agents) }

// Ring finds a ring by its key or makes it.
func (w *World) Ring(key string, p thread.Policy, set Ring) *Ring {
	if r := w.byKey[key]; r != nil {
		return r
	}
	r := &set
	r.Slots = max(r.Slots, 1)
	if r.Keep == 0 {
		r.Keep = 10 * time.Second
	}
	r.ring = w.core.Ring(key, p)
	r.ring.Serve = r
	w.rings = append(w.rings, r)
	w.byKey[key] = r
	return r
}

// agent is a process that delivers.
type agent struct {
	ring  *Ring
	free  int
	queue []*thread.Vertex // with one slot: its delivery, and those behind it
	busy  int
	idle  time.Time
	born  time.Time
	kept  map[*Host][]time.Time // connections, by when they are closed
	ended bool

	closing bool // it takes nothing more, and ends when it is done
}

func (a *agent) mayTake() bool { return a.free > 0 && !a.closing }

// patience is how long all slots must have been taken before another agent is started,
// as the engine has it.
const patience = 100 * time.Millisecond

// feed gives ready deliveries to the ring's agents, as engine.feed does.
func (w *World) feed(r *Ring) {
	for r.anyFree() {
		v := w.core.Take(r.ring, w.now)
		if v == nil {
			break
		}
		a := r.choose(v.Thread)
		w.give(a, v)
		for r.Slots == 1 && len(a.queue) < r.Overfeed {
			more := w.core.TakeMore(v.Thread, w.now)
			if more == nil {
				break
			}
			w.give(a, more)
		}
	}
	if !r.anyFree() && r.ring.Hungry() {
		w.wantAgent(r)
	} else {
		r.impatient = time.Time{}
		w.satisfied(r)
	}
}

func (r *Ring) anyFree() bool {
	for _, a := range r.agents {
		if a.mayTake() {
			return true
		}
	}
	return false
}

func (r *Ring) choose(t *thread.Thread) *agent {
	if a, _ := t.Serve.(*agent); a != nil && a.ring == r && !a.ended && a.mayTake() {
		return a
	}
	var best *agent
	for _, a := range r.agents {
		if a.mayTake() && (best == nil || a.busy > best.busy) {
			best = a
		}
	}
	return best
}

func (w *World) give(a *agent, v *thread.Vertex) {
	a.free = max(a.free-1, 0)
	a.busy++
	a.idle = time.Time{}
	v.Thread.Serve = a
	if a.ring.Slots > 1 {
		w.attempt(a, v)
		return
	}
	a.queue = append(a.queue, v)
	if len(a.queue) == 1 {
		w.attempt(a, v)
	}
}

// attempt has an agent begin a delivery.
func (w *World) attempt(a *agent, v *thread.Vertex) {
	l := w.deliveries[v]
	h := l.Host
	if l.Attempts++; l.Started.IsZero() {
		l.Started = w.now
	}
	verdict := w.answer(h, l, a.connection(h, w.now))
	if w.OnStart != nil {
		w.OnStart(l, h)
	}
	w.in(verdict.Took, func() { w.ends(a, v, h, verdict) })
}

// connection takes a kept one, if there is one.
func (a *agent) connection(h *Host, now time.Time) bool {
	list := a.kept[h]
	for len(list) > 0 {
		last := list[len(list)-1]
		list = list[:len(list)-1]
		if last.After(now) {
			a.kept[h] = list
			return true
		}
	}
	delete(a.kept, h)
	return false
}

// ends takes the end of a delivery, as engine.end does.
func (w *World) ends(a *agent, v *thread.Vertex, h *Host, verdict Verdict) {
	h.active--
	if verdict.Result != thread.HostDeferred {
		a.kept[h] = append(a.kept[h], w.now.Add(a.ring.Keep))
	}
	list := v.Recipients()
	for i := range list {
		list[i].Result = verdict.Result
	}
	if verdict.Result == thread.Deferred {
		w.deliveries[v].Deferred++
	}
	wait := thread.HostWait{Until: verdict.Until, Busy: verdict.Busy}
	if verdict.Result == thread.HostDeferred {
		wait.Text = "it is in trouble"
	}
	round := w.core.End(v, wait, w.now)
	switch {
	case round.Left > 0 && round.Expired:
		w.done(v, Expired)
		w.core.Forget(v)
	case round.Left > 0:
		w.core.Wait(v, w.now)
	case verdict.Result == thread.Failed:
		w.done(v, Failed)
	default:
		w.done(v, Delivered)
	}
	w.rest(a)
}

// rest frees a slot.
func (w *World) rest(a *agent) {
	a.busy--
	if a.ring.Slots > 1 {
		a.free++
	} else {
		a.queue = a.queue[1:]
		if len(a.queue) > 0 {
			w.core.Promote(a.queue[0], w.now)
			w.attempt(a, a.queue[0])
		} else {
			a.free = 1
		}
	}
	switch {
	case a.busy == 0 && a.closing:
		w.end(a)
	case a.busy == 0:
		w.idles(a)
	}
	w.core.Touch(a.ring.ring)
}

// idles notes that an agent has nothing to do; it ends when that lasts, or when its
// place is wanted.
func (w *World) idles(a *agent) {
	a.idle = w.now
	since := a.idle
	if a.ring.IdleMax > 0 {
		w.in(a.ring.IdleMax, func() {
			if a.idle.Equal(since) && !a.ended {
				w.end(a)
			}
		})
	}
	for _, r := range w.starved {
		w.core.Touch(r.ring)
	}
}

// end ends an idle agent.
func (w *World) end(a *agent) {
	a.ended = true
	w.agents--
	list := a.ring.agents
	for i := range list {
		if list[i] == a {
			a.ring.agents = append(list[:i], list[i+1:]...)
			break
		}
	}
	if a.closing {
		w.satisfied(a.ring) // it asks again, behind the others
	}
	w.placeFree()
	w.core.Touch(a.ring.ring)
}

// wantAgent starts another agent if it may be, as engine.wantAgent does.
func (w *World) wantAgent(r *Ring) {
	if r.starting {
		return
	}
	if r.impatient.IsZero() && len(r.agents) > 0 && r.Slots > 1 {
		r.impatient = w.now.Add(patience)
		w.in(patience, func() { w.core.Touch(r.ring) })
	}
	if r.impatient.After(w.now) {
		return
	}
	if r.MaxTA > 0 && (w.agents >= r.MaxTA || w.poorer(r)) {
		if !r.waiting {
			r.waiting = true
			w.starved = append(w.starved, r)
		}
		w.reclaim(r)
		return
	}
	w.satisfied(r)
	r.starting, r.impatient = true, time.Time{}
	w.agents++
	w.in(w.AgentStart, func() {
		r.starting = false
		a := &agent{ring: r, free: r.Slots, born: w.now, kept: map[*Host][]time.Time{}}
		r.agents = append(r.agents, a)
		w.idles(a)
		w.core.Touch(r.ring)
	})
}

// poorer reports whether a ring with fewer agents waits for a place, or one with as many
// waits longer.
func (w *World) poorer(than *Ring) bool {
	ahead := true
	for _, r := range w.starved {
		switch {
		case r == than:
			ahead = false
		case len(r.agents) < len(than.agents), ahead && len(r.agents) == len(than.agents):
			return true
		}
	}
	return false
}

// satisfied takes note that a ring no longer waits for a place.
func (w *World) satisfied(r *Ring) {
	if r.waiting {
		r.waiting = false
		w.starved = slices.DeleteFunc(w.starved, func(s *Ring) bool { return s == r })
		w.placeFree()
	}
}

// serves is how long the only agent of a ring keeps its place, as the engine has it.
const serves = 10 * time.Second

// placeFree has the rings that wait for a place look again.
func (w *World) placeFree() {
	for _, r := range w.starved {
		w.core.Touch(r.ring)
	}
}

// reclaim makes room for an agent of a ring: the one that is idle the longest ends, or
// one of a ring that has more agents by two takes nothing more.
func (w *World) reclaim(starved *Ring) {
	var oldest, single *agent
	rich := starved
	for _, r := range w.rings {
		if len(r.agents) == 1 && (single == nil || r.agents[0].born.Before(single.born)) {
			single = r.agents[0]
		}
		if len(r.agents) > len(rich.agents) {
			rich = r
		}
		for _, a := range r.agents {
			if a.closing {
				return // a place becomes free soon
			}
			if a.busy == 0 && !a.idle.IsZero() && !r.ring.Hungry() && (oldest == nil || a.idle.Before(oldest.idle)) {
				oldest = a
			}
		}
	}
	switch {
	case oldest != nil:
		w.end(oldest)
	case len(rich.agents) == 1 && len(starved.agents) == 0:
		if wait := single.born.Add(serves).Sub(w.now); wait > 0 {
			w.in(wait, func() { w.core.Touch(starved.ring) })
			return
		}
		single.closing = true
	case len(rich.agents) > len(starved.agents)+1:
		slices.MinFunc(rich.agents, func(a, b *agent) int { return cmp.Compare(a.busy, b.busy) }).closing = true
	}
}
