package scheduler

import (
	"strings"
	"time"

	"zmailer/internal/stage/scheduler/conf"
	"zmailer/internal/stage/scheduler/store"
	"zmailer/internal/stage/scheduler/thread"
	"zmailer/internal/wire/taproto"
)

// crew is the agents of a ring.
type crew struct {
	ring          *thread.Ring
	settings      *conf.Settings
	channel, host string // for the command
	agents        []*agent
	starting      bool
	failures      int            // agents in a row that ended or did not start
	notBefore     time.Time      // of the next start
	grace         time.Time      // when the ring is to be looked at again
	impatient     time.Time      // when slots that are all taken are a reason to start another agent
	told          bool           // a start that failed was logged
	waiting       bool           // in engine.starved
	retired       bool           // scheduler.conf has no such ring any more
	next          *conf.Settings // by a new scheduler.conf, see reconfigure
}

// ring is the ring that serves a channel and host, nil if no clause does.
func (e *engine) ring(channel, host string) *thread.Ring {
	s := e.conf.Conf.Current().Match(channel, host)
	if s == nil {
		return nil
	}
	r := e.core.Ring(s.RingKey(channel, host), s.Policy())
	c, _ := r.Serve.(*crew)
	switch {
	case c == nil:
		r.Serve = &crew{ring: r, settings: s, channel: strings.Clone(channel), host: strings.Clone(host)}
	case c.retired:
		c.retired, c.settings, c.next = false, s, s
		e.follows(r, s.Policy())
	default:
		c.next = s
	}
	return r
}

// delivery is a vertex that an agent has.
type delivery struct {
	v        *thread.Vertex  // nil: it is answered, its #hungry is still to come
	outcomes []store.Outcome // that are to be store.Recorded
	wait     thread.HostWait
	report   bool // somebody may want to hear of an answer
	bytes    int  // of its line
	given    time.Time
	heard    time.Time // when the agent came to it, or last answered for a recipient of it
}

// feed gives what is ready in a ring to its agents and starts another one if all
// are at work.
func (e *engine) feed(r *thread.Ring) {
	c, _ := r.Serve.(*crew)
	if c == nil || e.stopping || e.startsNothing() {
		return
	}
	if c.retired {
		e.satisfied(c)
		e.unserve(r, c)
		return
	}
	for c.anyFree() {
		v := e.core.Take(r, e.now)
		if v == nil {
			break
		}
		a := c.choose(v.Thread)
		e.give(a, v)
		e.overfeed(a, v.Thread)
	}
	if !c.anyFree() && r.Hungry() {
		e.wantAgent(c)
	} else {
		c.impatient = time.Time{}
		e.satisfied(c)
	}
	for _, a := range c.agents {
		e.tellIdle(a)
	}
	if len(c.agents) == 0 && !c.starting {
		e.core.Remove(r)
	}
}

func (c *crew) anyFree() bool {
	for _, a := range c.agents {
		if a.mayTake() {
			return true
		}
	}
	return false
}

// choose picks an agent with a free slot: the one that served the thread last and
// may still have its connection, else the one with the most slots at work, so that
// the others become idle and end.
func (c *crew) choose(t *thread.Thread) *agent {
	if a, _ := t.Serve.(*agent); a != nil && a.crew == c && !a.ended && a.mayTake() {
		return a
	}
	var best *agent
	for _, a := range c.agents {
		if a.mayTake() && (best == nil || len(a.deliveries) > len(best.deliveries)) {
			best = a
		}
	}
	return best
}

// give hands a vertex to an agent.
func (e *engine) give(a *agent, v *thread.Vertex) {
	host := v.Thread.Host
	if a.crew.settings.Command.NamesHost {
		host = "" // it is in its arguments
	}
	before := len(a.out)
	a.out = taproto.AppendCommand(a.out, taproto.Command{Job: taproto.Job{Name: v.Message.Name(), Host: host}})
	n := len(a.out) - before
	a.deliveries = append(a.deliveries, delivery{v: v, bytes: n, given: e.now, heard: e.now})
	if limit := a.crew.settings.AnswerMax; limit > 0 && e.overdueAt.IsZero() {
		e.overdueAt = e.now.Add(limit)
	}
	a.unread += n
	if a.free > 0 {
		a.free--
	}
	a.toldIdle, a.idle = false, time.Time{}
	v.Thread.Serve = a
	e.counts.Attempts++
	e.meters.attempts.With(v.Thread.Channel(), a.crew.settings.Clause).Add(1)
	e.touchAgent(a)
}

// overfeed queues more of the same thread in an agent that does one thing at a time.
func (e *engine) overfeed(a *agent, t *thread.Thread) {
	for a.slots <= 1 && len(a.deliveries) < a.crew.settings.Overfeed && a.room() {
		v := e.core.TakeMore(t, e.now)
		if v == nil {
			return
		}
		e.give(a, v)
	}
}

// touchAgent has the agent's lines written at the end of the turn.
func (e *engine) touchAgent(a *agent) {
	if !a.dirty {
		a.dirty = true
		e.dirty = append(e.dirty, a)
	}
}

// tellIdle says #idle, once, to a one-slot agent that waits for something to do.
// Those with more slots see to their connections themselves.
func (e *engine) tellIdle(a *agent) {
	if a.slots != 1 || a.free == 0 || a.toldIdle || a.closing || len(a.deliveries) > 0 {
		return
	}
	a.out = taproto.AppendCommand(a.out, taproto.Command{Kind: taproto.CommandIdle})
	// Its #hungry comes again; until then nothing else is sent, so that the two are
	// not mixed up.
	a.free, a.toldIdle, a.idleSaid = 0, true, true
	e.touchAgent(a)
}
