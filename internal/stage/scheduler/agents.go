package scheduler

import (
	"os"
	"syscall"
	"time"

	"zmailer/internal/stage/scheduler/conf"
	"zmailer/internal/stage/scheduler/store"
	"zmailer/internal/stage/scheduler/thread"
	"zmailer/internal/wire/taproto"
)

// agent is a running transport agent: a child process with pipes.
type agent struct {
	crew *crew
	pid  int
	proc process
	in   *os.File // its standard input, our end

	deliveries []delivery // with one slot in the order they were given
	slots      int        // #hungry it had outstanding at most
	free       int
	claimed    bool      // it has said how many slots it has
	doubts     []*doubt  // jobs that were taken back from it
	locks      bool      // it may have left recipients locked of some that are no doubts any more
	idleSaid   bool      // #idle was said, its #hungry is to come
	said       time.Time // when it last spoke, or was started
	born       time.Time // when it was started
	toldIdle   bool      // it was told since its last delivery
	idle       time.Time

	out    []byte // to be written at the end of the turn
	dirty  bool
	unread int // bytes of the lines of deliveries that it may not have read yet
	window int // how many may be, so that a write never waits

	closing  bool      // its input is closed or will be
	leftAt   time.Time // when it was told to take nothing more
	closedAt time.Time
	ended    bool
	signal   syscall.Signal // last one sent
	hopeless bool           // it will not answer: its end is not waited for
	junk     int            // lines since its last answer that meant nothing
}

// mayTake tells whether the agent can be given a delivery.
func (a *agent) mayTake() bool { return a.free > 0 && !a.closing && a.room() }

// soonFree tells whether the agent is about to ask for more: it was just started and
// has not spoken yet, or a slot's work is answered and its #hungry still to come.
func (a *agent) soonFree() bool {
	if a.closing {
		return false
	}
	if a.slots == 0 {
		return true
	}
	live := 0
	for i := range a.deliveries {
		if a.deliveries[i].v != nil {
			live++
		}
	}
	return a.slots-a.free-live > 0
}

func (a *agent) room() bool { return a.unread < a.window }

// find is the delivery and recipient that an answer is about.
func (a *agent) find(ans *taproto.Answer) (int, *thread.Recipient) {
	for i := range a.deliveries {
		v := a.deliveries[i].v
		if v == nil || v.Message.Number != ans.Number {
			continue
		}
		if r := v.Find(ans.Offset); r != nil && r.Result == thread.None {
			return i, r
		}
	}
	return -1, nil
}

// answered takes note that a delivery is over. With one slot its #hungry follows, and the
// agent may go on with the next one from now on.
func (a *agent) answered(i int, now time.Time) {
	if a.slots <= 1 {
		a.deliveries[i].v, a.deliveries[i].outcomes = nil, nil
		if next := a.first(); next >= 0 {
			a.deliveries[next].heard = now
		}
		return
	}
	a.drop(i)
}

// drop takes a delivery off the list.
func (a *agent) drop(i int) delivery {
	j := a.deliveries[i]
	a.unread -= j.bytes
	last := len(a.deliveries) - 1
	if a.slots <= 1 {
		copy(a.deliveries[i:], a.deliveries[i+1:])
	} else {
		a.deliveries[i] = a.deliveries[last]
	}
	a.deliveries[last] = delivery{}
	a.deliveries = a.deliveries[:last]
	return j
}

// flush writes what is to be said, in one write. It does not wait: see window.
func (a *agent) flush(e *engine) {
	a.dirty = false
	if len(a.out) == 0 || a.in == nil {
		a.out = a.out[:0]
		return
	}
	_, err := a.in.Write(a.out)
	a.out = a.out[:0]
	if err != nil && !a.ended {
		// It no longer reads: its end is near, or has to be.
		e.log.Warn("agent-deaf", "pid", a.pid, "reason", err)
		a.close(e)
		a.send(syscall.SIGTERM)
	}
}

// rest notes that the agent has nothing to do.
func (a *agent) rest(e *engine) {
	if e.stopping || a.closing {
		a.close(e)
		return
	}
	if a.idle.IsZero() {
		a.idle = e.now
		e.wake(e.now.Add(a.crew.settings.IdleMax))
	}
	// It may have to make room for another one.
	e.placeFree()
}

// close ends the agent's input: it ends when it is done.
func (a *agent) close(e *engine) {
	a.takesNoMore(e)
	if a.in == nil {
		return
	}
	// Nothing is buffered in it.
	_ = a.in.Close()
	a.in = nil
	a.closedAt = e.now
	e.wake(e.now.Add(e.conf.StopTimeout))
}

// leave has the agent take nothing more and end when it is done.
func (a *agent) leave(e *engine) {
	if a.takesNoMore(e); len(a.deliveries) == 0 {
		a.close(e)
	}
}

// takesNoMore notes that the agent is given nothing more.
func (a *agent) takesNoMore(e *engine) {
	if !a.closing {
		a.closing, a.leftAt = true, e.now
	}
}

// stop lets running deliveries end. One that has more queued than it works on is
// closed at once, so that it does not begin another.
func (a *agent) stop(e *engine) {
	a.takesNoMore(e)
	if len(a.deliveries) == 0 || a.slots <= 1 && len(a.deliveries) > 1 {
		a.close(e)
	}
}

// kill ends an agent that does not end by itself.
func (a *agent) kill(e *engine) {
	a.close(e)
	sig := syscall.SIGTERM
	if a.signal != 0 {
		sig = syscall.SIGKILL
	}
	e.log.Warn("agent-killed", "pid", a.pid, "signal", sig.String(), "deliveries", len(a.deliveries))
	a.send(sig)
}

func (a *agent) send(sig syscall.Signal) {
	a.signal = sig
	// An error means that it has ended.
	_ = a.proc.Signal(sig)
}

// attend ends agents that were idle for long and lets rings go on whose start was
// put off.
func (e *engine) attend() {
	e.wakeAt = time.Time{}
	for a := range e.agents {
		if a.closing && !a.closedAt.IsZero() {
			e.lingering(a)
			continue
		}
		if a.closing || len(a.deliveries) > 0 || a.idle.IsZero() {
			continue
		}
		limit := a.crew.settings.IdleMax
		if a.slots == 0 {
			limit = max(limit, startGrace) // it has not come to its first #hungry yet
		}
		if at := a.idle.Add(limit); at.After(e.now) {
			e.wake(at)
			continue
		}
		a.close(e)
	}
	e.core.Rings(func(r *thread.Ring) {
		c, _ := r.Serve.(*crew)
		if c == nil {
			return
		}
		for _, at := range []*time.Time{&c.notBefore, &c.grace} {
			switch {
			case at.IsZero():
			case at.After(e.now):
				e.wake(*at)
			default:
				*at = time.Time{}
				e.core.Touch(r)
			}
		}
	})
}

// lingering ends an agent that has nothing to do and does not end.
func (e *engine) lingering(a *agent) {
	if len(a.deliveries) > 0 && !a.hopeless {
		return
	}
	if at := a.closedAt.Add(e.conf.StopTimeout); at.After(e.now) {
		e.wake(at)
		return
	}
	a.kill(e)
	a.closedAt = e.now.Add(killGrace - e.conf.StopTimeout)
	e.wake(e.now.Add(killGrace))
}

const (
	// startGrace is how long a new agent may be silent before it is ended.
	startGrace = time.Minute
	// hungryGrace is how long the #hungry after a start or an answer is waited for.
	hungryGrace = 5 * time.Second
	// patienceOfRing is how long all slots must have been taken before another agent
	// with many slots is started: a process costs more than a short wait.
	patienceOfRing = 100 * time.Millisecond
)

// wantAgent starts another agent of a crew if it may be.
func (e *engine) wantAgent(c *crew) {
	if c.starting || e.stopping {
		return
	}
	if c.notBefore.After(e.now) {
		e.satisfied(c) // the place is for who can use it now
		e.wake(c.notBefore)
		return
	}
	for _, a := range c.agents {
		// No other one is started for what this one is about to take.
		if at := a.said.Add(hungryGrace); a.soonFree() && at.After(e.now) {
			c.grace = store.Earliest(c.grace, at)
			e.wake(at)
			return
		}
	}
	if c.impatient.IsZero() && len(c.agents) > 0 && c.agents[0].slots > 1 {
		c.impatient = e.now.Add(patienceOfRing)
	}
	if c.impatient.After(e.now) {
		c.grace = store.Earliest(c.grace, c.impatient)
		e.wake(c.impatient)
		return
	}
	if e.noPlace(c) {
		return
	}
	e.satisfied(c)
	c.starting, c.impatient = true, time.Time{}
	e.starting++
	settings := c.settings
	l := launchOf(settings, c.channel, c.host)
	l.dir = e.transport()
	if e.conf.ZConfig != "" {
		l.env = append([]string{"ZCONFIG=" + e.conf.ZConfig}, l.env...)
	}
	go func() {
		a, out, err := l.start(e.conf.Starter, c.channel, c.host)
		e.post(func() { e.started(c, settings, a, out, err) })
	}()
}

// started takes in a new agent, or the news that there is none.
func (e *engine) started(c *crew, with *conf.Settings, a *agent, out *os.File, err error) {
	c.starting = false
	e.starting--
	if err != nil {
		if !c.told {
			e.log.Error("agent-not-started", "clause", c.settings.Clause, "command", c.settings.Command.Line(), "reason", err,
				"advice", "mend the command in scheduler.conf or install the program; its mail waits and the start is tried again")
		}
		c.told = true
		e.putOff(c)
		return
	}
	c.told = false
	a.crew, a.idle, a.said, a.born = c, e.now, e.now, e.now
	e.wake(e.now.Add(c.settings.IdleMax))
	c.agents = append(c.agents, a)
	e.agents[a] = true
	e.log.Info("agent-started", "pid", a.pid, "clause", c.settings.Clause, "command", c.settings.Command.Line(), "channel", c.channel)
	if e.stopping || c.retired || !with.SameAgents(c.settings) {
		a.close(e) // scheduler.conf has changed meanwhile
	}
	go e.attendAgent(a, out)
}

// putOff lets a crew wait before its next start: a second, doubling to a minute.
// Agents that die together count once.
func (e *engine) putOff(c *crew) {
	if c.notBefore.After(e.now) {
		return
	}
	c.notBefore = e.now.Add(min(e.conf.restart<<min(c.failures, 6), time.Minute))
	c.failures++
	e.wake(c.notBefore)
}

// agentEnded takes back what an agent had (S7).
func (e *engine) agentEnded(a *agent, how string) {
	a.ended = true
	wanted := a.closing && !a.hopeless
	a.close(e)
	delete(e.agents, a)
	c := a.crew
	for i := range c.agents {
		if c.agents[i] == a {
			c.agents = append(c.agents[:i], c.agents[i+1:]...)
			break
		}
	}
	lost := 0
	for i := range a.deliveries {
		if a.deliveries[i].v != nil {
			lost++
			e.lose(&a.deliveries[i])
		}
	}
	a.deliveries = nil
	e.releaseDoubts(a)
	switch {
	case wanted && lost == 0:
		e.log.Info("agent-ended", "pid", a.pid, "state", how)
	default:
		e.log.Warn("agent-ended", "pid", a.pid, "state", how, "clause", c.settings.Clause, "command", c.settings.Command.Line(), "unanswered", lost)
		e.putOff(c)
	}
	if wanted {
		e.satisfied(c) // it asks again, behind the others
	}
	e.placeFree()
	e.core.Touch(c.ring)
}
