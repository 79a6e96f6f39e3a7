// Package agents runs the scheduler's transport agents: which agent gets which delivery,
// when another one is started and when one has to end. It speaks the agent protocol
// (internal/wire/taproto) with them.
//
// Pool is a state machine. It is called in one goroutine, by the engine or by a
// simulation, with the time and with what agents write; what their answers mean for
// messages it reports to its Owner. A Group is the agents of one ring, an Agent one
// process with its jobs. Pool starts processes through a Spawner: Processes starts real
// ones; agents of other users are started by the Launcher, a process of root
// (docs/privileges.md).
//
// Nothing here survives a crash: agents whose input ends finish what they deliver and
// write it into the specifications themselves.
//
// Diagnostics: trouble with an agent is logged, and Owner.Lost is called for each of its jobs.
// ErrLauncher means that the launcher has ended: the scheduler has to end, too.
package agents

import (
	"cmp"
	"log/slog"
	"syscall"
	"time"

	"zmailer/internal/stage/scheduler/conf"
	"zmailer/internal/stage/scheduler/thread"
	"zmailer/internal/wire/taproto"
)

// Owner hears what agents have done. It is called in the pool's goroutine.
type Owner interface {
	// Given reports that an agent was given a vertex.
	Given(a *Agent, v *thread.Vertex)
	// Answered reports the outcome of one recipient, r.Result.
	Answered(v *thread.Vertex, r *thread.Recipient, ans *taproto.Answer)
	// Done reports that all recipients of a job have an outcome.
	Done(j *Job)
	// Lost reports that a job has ended without all of its answers: the tags of the
	// specification show the rest.
	Lost(j *Job)
	// Late reports an outcome of a job that was lost before. known: a tag has shown it.
	Late(d *Doubt, o *thread.Outcome, word taproto.Word, known bool)
	// Stray reports an answer about a message of which the agent has no job.
	Stray(number uint64)
	// Unlocked reports that recipients that were locked may be free.
	Unlocked()
}

// Spawner starts agents. It does not wait: it calls started in the pool's goroutine.
type Spawner interface {
	Start(l Launch, channel, host string, started func(Process, error))
}

// Process is a running agent.
type Process interface {
	Pid() int
	// Window returns how many bytes the process may leave unread before a Write waits.
	Window() int
	// Listen begins to report to a, in the pool's goroutine, what the process writes and
	// that it ends.
	Listen(a *Agent)
	Write(lines []byte) error
	CloseInput()
	// Unread returns how many written bytes the process has not read.
	Unread() int
	Signal(sig syscall.Signal)
}

// Limits bound what the pool waits for. Zero: the usual.
type Limits struct {
	End     time.Duration // for an agent to end when its input has ended
	Restart time.Duration // before the first new start of a group's agent
	Deaf    time.Duration // for an agent to read what it was given
}

// Pool is all agents of a scheduler.
type Pool struct {
	core   *thread.Core
	owner  Owner
	spawn  Spawner
	log    *slog.Logger
	limits Limits

	now      time.Time
	agents   []*Agent // the oldest first
	starting int
	unsent   []*Agent // with something to write
	places   places
	watched  []*Group  // that are to be looked at again at some time
	wakeAt   time.Time // when agents want attention: idle ones, new starts
	// overdueAt is when the first job may be without an answer for too long.
	overdueAt time.Time
	stopping  bool
}

// New makes a pool without agents.
func New(core *thread.Core, owner Owner, spawn Spawner, limits Limits, log *slog.Logger) *Pool {
	limits.Restart, limits.Deaf = cmp.Or(limits.Restart, time.Second), cmp.Or(limits.Deaf, time.Minute)
	p := &Pool{core: core, owner: owner, spawn: spawn, limits: limits, log: log}
	p.places.pool = p
	return p
}

// Tick sets the time.
func (p *Pool) Tick(now time.Time) { p.now = now }

// Turn does what the time has come for.
func (p *Pool) Turn() {
	if !p.wakeAt.IsZero() && !p.now.Before(p.wakeAt) {
		p.attend()
	}
	p.overdue()
}

// Next is when Turn has something to do; zero: never.
func (p *Pool) Next() time.Time { return earliest(p.wakeAt, p.overdueAt) }

// Flush writes to the agents what they were given in this turn.
func (p *Pool) Flush() {
	for _, a := range p.unsent {
		a.flush()
	}
	p.unsent = p.unsent[:0]
}

// Len returns how many agents there are, and idle how many of them have no delivery.
func (p *Pool) Len() (n, idle int) { return count(p.agents) }

// Running counts deliveries under way.
func (p *Pool) Running() (n int) {
	for _, a := range p.agents {
		n += len(a.jobs.list)
	}
	return n
}

// Ended reports whether no agent runs or is being started.
func (p *Pool) Ended() bool { return len(p.agents) == 0 && p.starting == 0 }

// Stop gives no agent anything more: each ends when its deliveries do.
func (p *Pool) Stop() {
	p.stopping = true
	for _, a := range p.agents {
		a.stop()
	}
}

// Kill ends all agents, with SIGKILL at the second call.
func (p *Pool) Kill() {
	for _, a := range p.agents {
		a.kill()
	}
}

// Shift moves every time that is to come, after the clock was set.
func (p *Pool) Shift(by time.Duration) {
	later := func(list ...*time.Time) {
		for _, t := range list {
			if !t.IsZero() {
				*t = t.Add(by)
			}
		}
	}
	later(&p.wakeAt, &p.overdueAt)
	for _, a := range p.agents {
		later(&a.spoke, &a.born, &a.idle, &a.leftAt, &a.closedAt)
		for i := range a.jobs.list {
			later(&a.jobs.list[i].given, &a.jobs.list[i].heard)
		}
	}
	p.core.Rings(func(r *thread.Ring) {
		if g := GroupOf(r); g != nil {
			later(&g.notBefore, &g.lookAt, &g.impatient)
		}
	})
}

// earliest returns the earlier of two times of which zero means never.
func earliest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// wake has attend called at a time.
func (p *Pool) wake(at time.Time) { p.wakeAt = earliest(p.wakeAt, at) }

// attend ends agents that were idle for long, and has groups looked at again whose
// time has come.
func (p *Pool) attend() {
	p.wakeAt = time.Time{}
	for _, a := range p.agents {
		a.attend()
	}
	watched := p.watched
	p.watched = nil
	for _, g := range watched {
		g.watched = false
		if g.removed {
			continue
		}
		for _, at := range []*time.Time{&g.notBefore, &g.lookAt} {
			switch {
			case at.IsZero():
			case at.After(p.now):
				p.watch(g, *at)
			default:
				*at = time.Time{}
				p.core.Touch(g.ring)
			}
		}
	}
}

// watch has attend look at a group at a time.
func (p *Pool) watch(g *Group, at time.Time) {
	if !g.watched {
		g.watched = true
		p.watched = append(p.watched, g)
	}
	p.wake(at)
}

const (
	// killGrace is the time between SIGTERM and SIGKILL.
	killGrace = 2 * time.Second
	// startGrace is how long a new agent may be silent before it is ended.
	startGrace = time.Minute
	// hungryGrace is how long the #hungry after a start or an answer is waited for.
	hungryGrace = 5 * time.Second
	// patience is how long all slots must have been taken before another agent with many
	// slots is started: a process costs more than a short wait.
	patience = 100 * time.Millisecond
)

// wantAgent starts another agent of a group if it may.
func (p *Pool) wantAgent(g *Group) {
	if g.starting || p.stopping {
		return
	}
	if g.notBefore.After(p.now) {
		p.places.satisfied(g) // another group can use the place now
		p.watch(g, g.notBefore)
		return
	}
	for _, a := range g.agents {
		// No other one is started for what this one is about to take.
		if at := a.spoke.Add(hungryGrace); a.soonFree() && at.After(p.now) {
			p.LookAgain(g, at)
			return
		}
	}
	if g.impatient.IsZero() && len(g.agents) > 0 && g.agents[0].jobs.slots > 1 {
		g.impatient = p.now.Add(patience)
	}
	if g.impatient.After(p.now) {
		p.LookAgain(g, g.impatient)
		return
	}
	if p.places.noPlace(g) {
		return
	}
	p.places.satisfied(g)
	g.starting, g.impatient = true, time.Time{}
	p.starting++
	with := g.settings
	p.spawn.Start(LaunchOf(with, g.Channel, g.Host), g.Channel, g.Host, func(proc Process, err error) { p.started(g, with, proc, err) })
}

// LookAgain has a group looked at again at a time.
func (p *Pool) LookAgain(g *Group, at time.Time) {
	g.lookAt = earliest(g.lookAt, at)
	p.watch(g, at)
}

// started takes in a new agent, or the reason why there is none.
func (p *Pool) started(g *Group, with *conf.Settings, proc Process, err error) {
	g.starting = false
	p.starting--
	if err != nil {
		if !g.failing {
			p.log.Error("agent-not-started", "clause", g.settings.Clause, "command", g.settings.Command.Line(), "reason", err,
				"advice", "correct the command in scheduler.conf or install the program; its mail waits and the start is tried again")
		}
		g.failing = true
		p.putOff(g)
		return
	}
	g.failing = false
	a := &Agent{pool: p, group: g, proc: proc, pid: proc.Pid(), idle: p.now, spoke: p.now, born: p.now}
	a.jobs.window = proc.Window()
	p.wake(p.now.Add(g.settings.IdleMax))
	g.agents = append(g.agents, a)
	p.agents = append(p.agents, a)
	p.log.Info("agent-started", "pid", a.pid, "clause", g.settings.Clause, "command", g.settings.Command.Line(), "channel", g.Channel)
	if p.stopping || g.retired || !with.SameAgents(g.settings) {
		a.close() // scheduler.conf has changed meanwhile
	}
	proc.Listen(a)
}

// putOff has a group wait before its next start: a second, doubling to a minute. Agents
// that die together count once.
func (p *Pool) putOff(g *Group) {
	if g.notBefore.After(p.now) {
		return
	}
	g.notBefore = p.now.Add(min(p.limits.Restart<<min(g.failures, 6), time.Minute))
	g.failures++
	p.watch(g, g.notBefore)
}
