package sim

import (
	"bytes"
	"slices"
	"syscall"
	"time"

	"zmailer/internal/stage/scheduler/agents"
	"zmailer/internal/stage/scheduler/conf"
	"zmailer/internal/stage/scheduler/thread"
	"zmailer/internal/wire/taproto"
)

// Ring is a ring of the core with its agents, as a clause of scheduler.conf makes them.
type Ring struct {
	Slots    int           // deliveries that an agent does at once; 0: 1
	Overfeed int           // deliveries that a one-slot agent may have queued
	MaxTA    int           // agents of the whole world; 0: no limit
	IdleMax  time.Duration // of an agent; 0: for ever
	Keep     time.Duration // how long an agent keeps a connection; 0: 10s

	world    *World
	key      string
	policy   thread.Policy
	settings conf.Settings
}

// forever is longer than any simulation.
const forever = 100_000 * time.Hour

// Ring finds a ring by its key or makes it.
func (w *World) Ring(key string, p thread.Policy, set Ring) *Ring {
	if r := w.rings[key]; r != nil {
		return r
	}
	r := &set
	r.world, r.key, r.policy = w, key, p
	r.Slots = max(r.Slots, 1)
	if r.Keep == 0 {
		r.Keep = 10 * time.Second
	}
	r.settings = conf.Settings{Overfeed: r.Overfeed, MaxTA: r.MaxTA, IdleMax: r.IdleMax}
	if r.IdleMax == 0 {
		r.settings.IdleMax = forever
	}
	w.rings[key] = r
	return r
}

// current returns the ring in the core, which forgets one without threads and agents.
func (r *Ring) current() *thread.Ring {
	ring := r.world.core.Ring(r.key, r.policy)
	if agents.GroupOf(ring) == nil {
		agents.NewGroup(ring, &r.settings, r.key, "")
	}
	return ring
}

// Running returns how many deliveries the ring has under way.
func (r *Ring) Running() int { return r.current().Running() }

// players are the World as the owner of the agents and as what starts them.
type players struct{ *World }

// agent is a process that delivers.
type agent struct {
	world  *World
	ring   *Ring
	to     *agents.Agent
	queue  []*thread.Vertex // with one slot: its delivery, and those behind it
	busy   int
	kept   map[*Host][]time.Time // connections, by when they are closed
	closed bool                  // it ends when it is done
}

// Start implements agents.Spawner.
func (w players) Start(_ agents.Launch, key, _ string, started func(agents.Process, error)) {
	w.in(w.AgentStart, func() {
		started(&agent{world: w.World, ring: w.rings[key], kept: map[*Host][]time.Time{}}, nil)
	})
}

// Listen implements agents.Process: the agent asks for as much as it can do.
func (a *agent) Listen(to *agents.Agent) {
	a.to = to
	a.world.agents[to] = a
	lines := []taproto.Line{{Kind: taproto.LineSlots, Slots: a.ring.Slots}}
	if a.ring.Slots == 1 {
		lines = nil
	}
	to.Lines(append(lines, slices.Repeat([]taproto.Line{{Kind: taproto.LineHungry}}, a.ring.Slots)...))
}

// Write implements agents.Process. Given has the jobs; #idle is answered.
func (a *agent) Write(lines []byte) error {
	if bytes.HasPrefix(lines, []byte("#idle")) {
		a.world.in(0, func() { a.to.Lines([]taproto.Line{{Kind: taproto.LineHungry}}) })
	}
	return nil
}

// CloseInput implements agents.Process.
func (a *agent) CloseInput() {
	a.closed = true
	a.endIfDone()
}

func (a *agent) endIfDone() {
	if a.closed && a.busy == 0 {
		delete(a.world.agents, a.to)
		a.world.in(0, func() { a.to.Ended("exit status 0") })
	}
}

// Pid implements agents.Process.
func (a *agent) Pid() int { return 1 }

// Window implements agents.Process.
func (a *agent) Window() int { return 1 << 20 }

// Unread implements agents.Process.
func (a *agent) Unread() int { return 0 }

// Signal implements agents.Process.
func (a *agent) Signal(syscall.Signal) {}

// Given implements agents.Owner.
func (w players) Given(to *agents.Agent, v *thread.Vertex) {
	a := w.agents[to]
	a.busy++
	if a.ring.Slots == 1 {
		if a.queue = append(a.queue, v); len(a.queue) > 1 {
			return
		}
	}
	a.attempt(v)
}

// attempt begins a delivery.
func (a *agent) attempt(v *thread.Vertex) {
	w := a.world
	l := w.deliveries[v]
	h := l.Host
	if l.Attempts++; l.Started.IsZero() {
		l.Started = w.now
	}
	verdict := w.answer(h, l, a.connection(h, w.now))
	if w.OnStart != nil {
		w.OnStart(l, h)
	}
	w.in(verdict.Took, func() { a.finish(v, h, verdict) })
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

// finish answers for a delivery and asks for another one.
func (a *agent) finish(v *thread.Vertex, h *Host, verdict Verdict) {
	w := a.world
	h.active--
	if verdict.Result != thread.HostDeferred {
		a.kept[h] = append(a.kept[h], w.now.Add(a.ring.Keep))
	}
	ans := taproto.Answer{Number: v.Message.Number, At: verdict.Until, Text: "it is in trouble"}
	switch {
	case verdict.Result == thread.Delivered:
		ans.Word = taproto.OK3
	case verdict.Result == thread.Failed:
		ans.Word = taproto.Error2
	case verdict.Result == thread.Deferred:
		ans.Word = taproto.Deferred
		w.deliveries[v].Deferred++
	case verdict.Busy:
		ans.Word, ans.Text = taproto.DeferAll, "421 too many connections"
	case verdict.Until.IsZero():
		ans.Word = taproto.DeferAll
	default:
		ans.Word = taproto.RetryAt
	}
	var lines []taproto.Line
	for _, r := range v.Recipients() {
		ans.Offset = r.Offset()
		lines = append(lines, taproto.Line{Kind: taproto.LineAnswer, Answer: ans})
	}
	a.busy--
	if a.ring.Slots == 1 {
		a.queue = a.queue[1:]
	}
	closed := a.closed
	a.to.Lines(append(lines, taproto.Line{Kind: taproto.LineHungry}))
	if len(a.queue) > 0 {
		a.attempt(a.queue[0])
	}
	if closed { // else CloseInput has done it
		a.endIfDone()
	}
}

// Done implements agents.Owner, as the engine does.
func (w players) Done(j *agents.Job) {
	v := j.Vertex
	result := v.Recipients()[0].Result
	round := w.core.End(v, j.Wait, w.now)
	switch {
	case round.Left > 0 && round.Expired:
		w.done(v, Expired)
		w.core.Forget(v)
	case round.Left > 0:
		w.core.Wait(v, w.now)
	case result == thread.Failed:
		w.done(v, Failed)
	default:
		w.done(v, Delivered)
	}
}

// Answered implements agents.Owner.
func (players) Answered(*thread.Vertex, *thread.Recipient, *taproto.Answer) {}

// Unlocked implements agents.Owner.
func (players) Unlocked() {}

// Lost implements agents.Owner.
func (players) Lost(*agents.Job) { panic("sim: an agent has lost a job") }

// Late implements agents.Owner.
func (players) Late(*agents.Doubt, *thread.Outcome, taproto.Word, bool) {
	panic("sim: an answer comes late")
}

// Stray implements agents.Owner.
func (players) Stray(uint64) { panic("sim: an answer is about no job") }
