// Package sim runs the scheduler's core and its pool of agents on a virtual clock: hosts,
// processes and mail are made up, the decisions are those of the packages thread and agents
// themselves. It shows how long mail waits under which policy, and when a queue will be empty.
//
// A World has hosts, which answer as their models say; rings with agents; and mail that is sent by a script or is there from the beginning.
// Run plays it, event by event; one seed gives one course of events.
//
// Nothing here survives a crash, and nothing is to: it has no disk and no clock.
//
// Diagnostics: there are no errors; calls that the core does not allow panic there.
package sim

import (
	"container/heap"
	"log/slog"
	"math/rand/v2"
	"time"

	"zmailer/internal/stage/scheduler/agents"
	"zmailer/internal/stage/scheduler/thread"
)

// World is what a simulation plays in.
type World struct {
	// OnStart, if set, is called when an agent begins an attempt.
	OnStart func(l *Delivery, h *Host)
	// AgentStart is how long a new agent takes until it asks for work.
	AgentStart time.Duration
	// Deliveries are all that was sent, in that order.
	Deliveries []*Delivery

	core       *thread.Core
	pool       *agents.Pool
	rand       *rand.Rand
	start      time.Time
	now        time.Time
	events     events
	seq        uint64
	hosts      map[string]*Host
	rings      map[string]*Ring
	agents     map[*agents.Agent]*agent
	deliveries map[*thread.Vertex]*Delivery
	number     uint64
	open       int
}

// New makes a world that begins at a time. Seed decides everything that is random.
func New(seed uint64, start time.Time) *World {
	w := &World{
		AgentStart: 20 * time.Millisecond,
		core:       thread.New(rand.New(rand.NewPCG(seed, 1))), rand: rand.New(rand.NewPCG(seed, 2)),
		start: start, now: start, hosts: map[string]*Host{}, rings: map[string]*Ring{}, agents: map[*agents.Agent]*agent{},
		deliveries: map[*thread.Vertex]*Delivery{},
	}
	w.pool = agents.New(w.core, players{w}, players{w}, agents.Limits{End: forever}, slog.New(slog.DiscardHandler))
	return w
}

// Suspend has a gate decide which deliveries begin, from now on and anew at some times.
// vertices: it may suspend single ones.
func (w *World) Suspend(g thread.Gate, vertices bool, again []time.Time) {
	w.core.SetGate(g, vertices, w.now)
	for _, t := range again {
		w.at(t, func() { w.core.SetGate(g, vertices, w.now) })
	}
}

// Now returns the virtual time.
func (w *World) Now() time.Time { return w.now }

// Since returns how far the virtual clock has come.
func (w *World) Since() time.Duration { return w.now.Sub(w.start) }

// Open counts the deliveries without an outcome.
func (w *World) Open() int { return w.open }

// event is what happens at a time.
type event struct {
	at  int64 // nanoseconds since 1970
	seq uint64
	do  func()
}

// events is a heap by time; what was said first comes first.
type events []event

func (q events) Len() int { return len(q) }
func (q events) Less(i, j int) bool {
	return q[i].at < q[j].at || q[i].at == q[j].at && q[i].seq < q[j].seq
}
func (q events) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *events) Push(x any)   { *q = append(*q, x.(event)) }
func (q *events) Pop() any {
	last := len(*q) - 1
	e := (*q)[last]
	(*q)[last] = event{}
	*q = (*q)[:last]
	return e
}

// At has something happen at a time since the beginning.
func (w *World) At(after time.Duration, do func()) { w.at(w.start.Add(after), do) }

// in has something happen a while from now.
func (w *World) in(d time.Duration, do func()) { w.at(w.now.Add(max(d, 0)), do) }

func (w *World) at(t time.Time, do func()) {
	w.seq++
	heap.Push(&w.events, event{t.UnixNano(), w.seq, do})
}

// Run plays until the virtual clock has come so far, or until nothing is left to happen.
// It reports whether something is.
func (w *World) Run(until time.Duration) bool {
	end := w.start.Add(until)
	for {
		w.turn()
		next, ok := w.next()
		if !ok {
			return false
		}
		if next.After(end) {
			w.now = end
			return true
		}
		if next.After(w.now) {
			w.now = next
		}
		w.pool.Tick(w.now)
		for len(w.events) > 0 && w.events[0].at <= w.now.UnixNano() {
			heap.Pop(&w.events).(event).do()
		}
	}
}

// Drain is Run until every delivery has an outcome.
func (w *World) Drain(limit time.Duration) bool {
	for step := time.Second; w.open > 0 && w.Since() < limit; step = min(2*step, time.Hour) {
		if !w.Run(min(w.Since()+step, limit)) {
			break
		}
	}
	return w.open == 0
}

// next returns the time of the next thing to happen.
func (w *World) next() (time.Time, bool) {
	next := w.core.Next()
	if at := w.pool.Next(); next.IsZero() || !at.IsZero() && at.Before(next) {
		next = at
	}
	if len(w.events) > 0 {
		if at := time.Unix(0, w.events[0].at).UTC(); next.IsZero() || at.Before(next) {
			next = at
		}
	}
	return next, !next.IsZero()
}

// turn does what is due, as the engine's does.
func (w *World) turn() {
	w.pool.Tick(w.now)
	expired, _ := w.core.Advance(w.now)
	for _, v := range expired {
		w.done(v, Expired)
		w.core.Forget(v)
	}
	w.pool.Turn()
	for r := w.core.Touched(); r != nil; r = w.core.Touched() {
		w.pool.Feed(agents.GroupOf(r))
	}
	w.pool.Flush()
}
