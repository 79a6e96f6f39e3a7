package agents

import (
	"slices"
	"time"

	"zmailer/internal/stage/scheduler/conf"
	"zmailer/internal/stage/scheduler/thread"
	"zmailer/internal/wire/taproto"
)

// Group is the agents of a ring.
type Group struct {
	Channel, Host string // that the ring was made for

	ring      *thread.Ring
	settings  *conf.Settings
	agents    []*Agent
	starting  bool
	failures  int       // agents in a row that ended or did not start
	failing   bool      // a start has failed and that was logged
	notBefore time.Time // of the next start
	lookAt    time.Time // when the ring is to be looked at again
	impatient time.Time // when slots that are all taken are a reason to start another agent
	waiting   bool      // in places
	watched   bool      // in Pool.watched
	retired   bool      // scheduler.conf has no such ring any more
	removed   bool      // the core has forgotten the ring
}

// NewGroup makes the group of a ring.
func NewGroup(r *thread.Ring, settings *conf.Settings, channel, host string) *Group {
	g := &Group{ring: r, settings: settings, Channel: channel, Host: host}
	r.Serve = g
	return g
}

// GroupOf returns the group of a ring, nil if it has none.
func GroupOf(r *thread.Ring) *Group {
	g, _ := r.Serve.(*Group)
	return g
}

// AgentOf returns the agent that was given a thread's last delivery, nil if it has ended.
func AgentOf(t *thread.Thread) *Agent {
	if a, _ := t.Serve.(*Agent); a != nil && !a.ended {
		return a
	}
	return nil
}

// Settings returns those of the clauses that the group serves.
func (g *Group) Settings() *conf.Settings { return g.settings }

// Retired reports whether scheduler.conf has no such ring any more.
func (g *Group) Retired() bool { return g.retired }

// Empty reports whether the group has no agent and is getting none.
func (g *Group) Empty() bool { return len(g.agents) == 0 && !g.starting }

// Len returns how many agents the group has, and how many of them have no delivery.
func (g *Group) Len() (n, idle int) { return count(g.agents) }

func count(list []*Agent) (n, idle int) {
	for _, a := range list {
		if len(a.jobs.list) == 0 {
			idle++
		}
	}
	return len(list), idle
}

// staying returns how many agents of a group still take deliveries.
func (g *Group) staying() (n int) {
	for _, a := range g.agents {
		if !a.closing {
			n++
		}
	}
	return n
}

func (g *Group) anyFree() bool { return slices.ContainsFunc(g.agents, (*Agent).mayTake) }

// choose picks an agent with a free slot: the one that served the thread last and
// may still have its connection, else the one with the most slots at work, so that
// the others become idle and end.
func (g *Group) choose(t *thread.Thread) *Agent {
	if a := AgentOf(t); a != nil && a.group == g && a.mayTake() {
		return a
	}
	var best *Agent
	for _, a := range g.agents {
		if a.mayTake() && (best == nil || len(a.jobs.list) > len(best.jobs.list)) {
			best = a
		}
	}
	return best
}

// Feed gives what is ready in a group's ring to its agents and starts another one if all
// are at work. A ring that needs none any more goes.
func (p *Pool) Feed(g *Group) {
	for g.anyFree() {
		v := p.core.Take(g.ring, p.now)
		if v == nil {
			break
		}
		a := g.choose(v.Thread)
		p.give(a, v)
		// More of the same thread is queued in an agent that does one thing at a time.
		for a.jobs.slots <= 1 && len(a.jobs.list) < g.settings.Overfeed && a.jobs.room() {
			more := p.core.TakeMore(v.Thread, p.now)
			if more == nil {
				break
			}
			p.give(a, more)
		}
	}
	if !g.anyFree() && g.ring.Hungry() {
		p.wantAgent(g)
	} else {
		g.impatient = time.Time{}
		p.places.satisfied(g)
	}
	for _, a := range g.agents {
		a.sendIdle()
	}
	p.remove(g)
}

// remove has the core forget a ring that has neither agents nor threads.
func (p *Pool) remove(g *Group) bool {
	g.removed = g.removed || g.Empty() && p.core.Remove(g.ring)
	return g.removed
}

// give hands a vertex to an agent.
func (p *Pool) give(a *Agent, v *thread.Vertex) {
	host := v.Thread.Host
	if a.group.settings.Command.NamesHost {
		host = ""
	}
	before := len(a.out)
	a.out = taproto.AppendCommand(a.out, taproto.Command{Job: taproto.Job{Name: v.Message.Name(), Host: host}})
	a.jobs.add(Job{Vertex: v, bytes: len(a.out) - before, given: p.now, heard: p.now})
	if limit := a.group.settings.AnswerMax; limit > 0 && p.overdueAt.IsZero() {
		p.overdueAt = p.now.Add(limit)
	}
	a.sentIdle, a.idle = false, time.Time{}
	v.Thread.Serve = a
	p.owner.Given(a, v)
	a.touch()
}

// Follow gives a group the settings of a new scheduler.conf, nil if it has none for it any
// more. It returns how many agents are to end because they were started in another way.
func (p *Pool) Follow(g *Group, next *conf.Settings) (ended int) {
	was := g.settings
	g.retired = next == nil
	g.failing, g.failures, g.notBefore = false, 0, time.Time{}
	if next != nil {
		g.settings = next
	}
	if next == nil || !next.SameAgents(was) {
		for _, a := range g.agents {
			if !a.closing {
				a.stop()
				ended++
			}
		}
	}
	for _, a := range g.agents {
		if !a.idle.IsZero() {
			p.wake(a.idle.Add(g.settings.IdleMax))
		}
	}
	p.core.Touch(g.ring)
	return ended
}

// Revive has a retired group serve again.
func (g *Group) Revive(settings *conf.Settings) { g.retired, g.settings = false, settings }

// Withdraw gives up the place that a retired group waits for. It reports whether the
// messages in its ring are to be looked at now, which they are once a second.
func (p *Pool) Withdraw(g *Group) bool {
	p.places.satisfied(g)
	if p.remove(g) {
		return false
	}
	if g.notBefore.After(p.now) {
		p.watch(g, g.notBefore)
		return false
	}
	g.notBefore = p.now.Add(time.Second)
	return true
}
