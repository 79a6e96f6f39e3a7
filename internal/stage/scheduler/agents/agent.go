package agents

import (
	"slices"
	"strings"
	"syscall"
	"time"

	"zmailer/internal/stage/scheduler/thread"
	"zmailer/internal/wire/taproto"
	"zmailer/internal/workspec"
)

// Agent is a running transport agent.
type Agent struct {
	pool  *Pool
	group *Group
	proc  Process
	pid   int

	jobs   jobs
	doubts []*Doubt // jobs that were taken back from it
	locks  bool     // it may have left recipients locked of some that are no doubts any more

	out      []byte // to be written at the end of the turn
	dirty    bool
	sentIdle bool // #idle was sent since its last job
	idleAsks bool // #idle was sent, its #hungry is to come

	born  time.Time
	spoke time.Time // when it last wrote anything, or was started
	idle  time.Time
	junk  int // lines since its last answer that meant nothing

	closing  bool      // it takes nothing more
	leftAt   time.Time // since when
	closedAt time.Time // when its input was closed
	ended    bool
	hopeless bool           // it will not answer: its end is not waited for
	signal   syscall.Signal // last one sent
}

// Pid returns the agent's process.
func (a *Agent) Pid() int { return a.pid }

// mayTake reports whether the agent can be given a job.
func (a *Agent) mayTake() bool { return a.jobs.free > 0 && !a.closing && a.jobs.room() }

// soonFree reports whether the agent is about to ask for more: it was just started and has
// not written anything yet, or a slot's work is answered and its #hungry still to come.
func (a *Agent) soonFree() bool {
	return !a.closing && (a.jobs.slots == 0 || a.jobs.slots-a.jobs.free-a.jobs.live() > 0)
}

// touch has the lines for the agent written at the end of the turn.
func (a *Agent) touch() {
	if !a.dirty {
		a.dirty = true
		a.pool.unsent = append(a.pool.unsent, a)
	}
}

// flush writes what the agent is to read, in one write. It does not wait: see Window.
func (a *Agent) flush() {
	a.dirty = false
	out := a.out
	a.out = a.out[:0]
	if len(out) == 0 || !a.closedAt.IsZero() {
		return
	}
	if err := a.proc.Write(out); err != nil && !a.ended {
		// It no longer reads: its end is near, or has to be.
		a.pool.log.Warn("agent-deaf", "pid", a.pid, "reason", err)
		a.close()
		a.send(syscall.SIGTERM)
	}
}

// sendIdle sends #idle, once, to a one-slot agent that waits for something to do. Those
// with more slots manage their connections themselves.
func (a *Agent) sendIdle() {
	if a.jobs.slots != 1 || a.jobs.free == 0 || a.sentIdle || a.closing || len(a.jobs.list) > 0 {
		return
	}
	a.out = taproto.AppendCommand(a.out, taproto.Command{Kind: taproto.CommandIdle})
	// Its #hungry comes again; until then nothing else is sent, so that the two are
	// not mixed up.
	a.jobs.free, a.sentIdle, a.idleAsks = 0, true, true
	a.touch()
}

// attend ends an agent that was idle for long, or that does not end.
func (a *Agent) attend() {
	p := a.pool
	switch {
	case a.closing && !a.closedAt.IsZero():
		a.linger()
		return
	case a.closing || len(a.jobs.list) > 0 || a.idle.IsZero():
		return
	}
	limit := a.group.settings.IdleMax
	if a.jobs.slots == 0 {
		limit = max(limit, startGrace) // it has not come to its first #hungry yet
	}
	if at := a.idle.Add(limit); at.After(p.now) {
		p.wake(at)
		return
	}
	a.close()
}

// linger kills an agent that has nothing to do and does not end.
func (a *Agent) linger() {
	if len(a.jobs.list) > 0 && !a.hopeless {
		return
	}
	if at := a.closedAt.Add(a.pool.limits.End); at.After(a.pool.now) {
		a.pool.wake(at)
		return
	}
	a.killNow()
}

// killNow kills an agent; the next signal is SIGKILL.
func (a *Agent) killNow() {
	a.kill()
	a.closedAt = a.pool.now.Add(killGrace - a.pool.limits.End)
	a.pool.wake(a.pool.now.Add(killGrace))
}

// rest notes that the agent has nothing to do.
func (a *Agent) rest() {
	p := a.pool
	if p.stopping || a.closing {
		a.close()
		return
	}
	if a.idle.IsZero() {
		a.idle = p.now
		p.wake(p.now.Add(a.group.settings.IdleMax))
	}
	// Another group may want its place.
	p.places.placeFree()
}

// takesNoMore notes that the agent is given nothing more.
func (a *Agent) takesNoMore() {
	if !a.closing {
		a.closing, a.leftAt = true, a.pool.now
	}
}

// leave has the agent take nothing more and end when it is done.
func (a *Agent) leave() {
	if a.takesNoMore(); len(a.jobs.list) == 0 {
		a.close()
	}
}

// stop lets jobs under way end. An agent that has more queued than it works on is closed
// at once, so that it does not begin another.
func (a *Agent) stop() {
	a.takesNoMore()
	if len(a.jobs.list) == 0 || a.jobs.slots <= 1 && len(a.jobs.list) > 1 {
		a.close()
	}
}

// close ends the agent's input: it ends when it is done.
func (a *Agent) close() {
	a.takesNoMore()
	if !a.closedAt.IsZero() {
		return
	}
	a.proc.CloseInput()
	a.closedAt = a.pool.now
	a.pool.wake(a.pool.now.Add(a.pool.limits.End))
}

// kill ends an agent that does not end by itself.
func (a *Agent) kill() {
	a.close()
	sig := syscall.SIGTERM
	if a.signal != 0 {
		sig = syscall.SIGKILL
	}
	a.pool.log.Warn("agent-killed", "pid", a.pid, "signal", sig.String(), "deliveries", len(a.jobs.list))
	a.send(sig)
}

func (a *Agent) send(sig syscall.Signal) {
	a.signal = sig
	a.proc.Signal(sig)
}

// Ended takes back what an agent had that has ended (S7).
func (a *Agent) Ended(state string) {
	p, g := a.pool, a.group
	wanted := a.closing && !a.hopeless
	a.ended = true
	a.close()
	p.agents = slices.DeleteFunc(p.agents, func(o *Agent) bool { return o == a })
	g.agents = slices.DeleteFunc(g.agents, func(o *Agent) bool { return o == a })
	lost := a.jobs.live()
	for i := range a.jobs.list {
		if a.jobs.list[i].Vertex != nil {
			p.owner.Lost(&a.jobs.list[i])
		}
	}
	a.jobs.list = nil
	a.releaseDoubts()
	if wanted && lost == 0 {
		p.log.Info("agent-ended", "pid", a.pid, "state", state)
	} else {
		p.log.Warn("agent-ended", "pid", a.pid, "state", state, "clause", g.settings.Clause, "command", g.settings.Command.Line(), "unanswered", lost)
		p.putOff(g)
	}
	if wanted {
		p.places.satisfied(g) // it asks again, behind the others
	}
	p.places.placeFree()
	p.core.Touch(g.ring)
}

// Lines takes what the agent wrote.
func (a *Agent) Lines(list []taproto.Line) {
	if a.ended {
		return
	}
	a.spoke = a.pool.now
	for i := range list {
		l := &list[i]
		switch l.Kind {
		case taproto.LineHungry:
			a.hungry()
		case taproto.LineAnswer:
			a.answer(&l.Answer)
		case taproto.LineResync:
			a.resync(l.Name, l.Host)
		case taproto.LineSlots:
			a.claim(l.Slots)
		default:
			if l.Text != "" && a.meaningless() {
				a.pool.log.Info("agent-said", "pid", a.pid, "text", cut(l.Text))
			}
		}
	}
	if len(a.jobs.list) == 0 {
		a.rest()
	}
	a.pool.core.Touch(a.group.ring)
}

// cut bounds what an agent's chatter may put into one line of the log.
func cut(s string) string {
	if len(s) > 500 {
		return s[:500] + "..."
	}
	return s
}

// hungry counts a free slot.
func (a *Agent) hungry() {
	q := &a.jobs
	switch {
	case a.idleAsks:
		a.idleAsks = false
		q.free = 1
	case q.slots <= 1 && len(q.list) > 0:
		// One at a time and in order: the oldest is over.
		a.forgetDoubts()
		a.over(0)
		if len(q.list) == 0 {
			q.free = 1
		} else {
			a.promote()
		}
	case q.free >= maxSlots, q.claimed && q.free >= q.slots:
		a.meaningless()
	default:
		// The #hungry of a start may come in several reads. An agent that does not announce
		// how many there will be has as many slots as were free at once.
		q.free++
		q.slots = max(q.slots, q.free)
		if q.free == q.slots {
			// All slots are free, so nothing is under way, whatever was not answered.
			a.forgetDoubts()
			for len(q.list) > 0 {
				a.over(len(q.list) - 1)
			}
		}
	}
}

// maxSlots bounds the slots that an agent may have.
const maxSlots = 1 << 16

// claim takes the number of slots that an agent announces.
func (a *Agent) claim(slots int) {
	if a.jobs.slots > 0 || slots < 2 || slots > maxSlots {
		a.meaningless()
		return
	}
	a.jobs.slots, a.jobs.claimed = slots, true
}

// over ends a job that the agent is done with; what it did not answer is looked up in the
// file.
func (a *Agent) over(i int) {
	j := a.jobs.drop(i)
	if j.Vertex == nil {
		return
	}
	if j.hostTrouble() {
		// The answer was about every recipient of the host.
		a.pool.owner.Done(&j)
		return
	}
	m := j.Vertex.Message
	a.pool.log.Warn("unanswered", "id", idOf(m), "name", m.Name(), "pid", a.pid, "host", j.Vertex.Thread.Host)
	a.pool.owner.Lost(&j)
}

// promote notes what a one-slot agent comes to next.
func (a *Agent) promote() {
	if i := a.jobs.first(); i >= 0 {
		a.jobs.list[i].heard = a.pool.now
		a.pool.core.Promote(a.jobs.list[i].Vertex, a.pool.now)
	}
}

// resync takes the report of an agent that it cannot use a file. An agent with several slots may
// have several jobs of one message; one that does not name the host of the job, as
// ZMailer's, loses all of them.
func (a *Agent) resync(name, host string) {
	found, one := false, a.jobs.slots <= 1
	for i := len(a.jobs.list) - 1; i >= 0; i-- {
		if one {
			i = max(a.jobs.first(), 0) // it does them in order
		}
		v := a.jobs.list[i].Vertex
		if v == nil || !v.Message.Named(name) || host != "" && !strings.EqualFold(host, v.Thread.Host) {
			if one {
				break
			}
			continue
		}
		found = true
		a.pool.log.Info("resync", "id", idOf(v.Message), "name", name, "pid", a.pid, "host", v.Thread.Host)
		if host != "" {
			// It is sure which job it means, and nothing of that is under way.
			j := a.jobs.list[i]
			a.jobs.answered(i, a.pool.now)
			a.locks = true
			a.pool.owner.Lost(&j)
		} else {
			a.takeBack(i)
		}
		if one {
			a.promote()
			break
		}
	}
	if !found && a.meaningless() {
		a.pool.log.Warn("agent-said", "pid", a.pid, "text", cut("#resync "+name), "reason", "it has no such delivery")
	}
}

// answer takes one recipient's outcome.
func (a *Agent) answer(ans *taproto.Answer) {
	i, rcpt := a.jobs.find(ans)
	if rcpt == nil {
		if a.late(ans) {
			a.group.failures, a.junk = 0, 0
			return
		}
		if !a.meaningless() {
			return
		}
		a.pool.log.Warn("agent-said", "pid", a.pid, "number", ans.Number, "offset", ans.Offset, "status", ans.Word, "text", cut(ans.Text),
			"reason", "it has no such delivery; ignored")
		a.pool.owner.Stray(ans.Number)
		return
	}
	j := &a.jobs.list[i]
	v := j.Vertex
	j.heard = a.pool.now
	j.take(rcpt, ans, a.pool.now)
	a.group.failures, a.junk = 0, 0
	if rcpt.Result.Final() {
		a.pool.owner.Answered(v, rcpt, ans)
	}
	if !v.Answered() {
		return
	}
	done := *j
	a.jobs.answered(i, a.pool.now)
	a.pool.owner.Done(&done)
	if a.jobs.slots <= 1 {
		a.promote()
	}
}

// take turns an answer into the core's terms and keeps what has to be recorded.
func (j *Job) take(rcpt *thread.Recipient, ans *taproto.Answer, now time.Time) {
	o := outcomeOf(ans, rcpt.Address)
	rcpt.Result = o.Result
	switch ans.Word {
	case taproto.OK, taproto.OK2, taproto.Error, taproto.Error2:
		j.Report = true
	case taproto.DeferAll, taproto.RetryAt:
		j.Wait.Text = thread.LastLine(ans.Text)
		j.Wait.Busy = strings.HasPrefix(j.Wait.Text, "421") // RFC 5321 section 3.8
		if ans.Word == taproto.RetryAt {
			at := ans.At
			if ans.Relative {
				at = now.Add(ans.After)
			}
			if at.After(j.Wait.Until) {
				j.Wait.Until = at
			}
		}
	}
	if LeftToUs(ans.Word) {
		j.Outcomes = append(j.Outcomes, o)
	}
	if ans.Word != taproto.OK3 {
		j.Vertex.Message.Owes = true
	}
}

// outcomeOf returns the outcome of a recipient that an answer reports.
func outcomeOf(ans *taproto.Answer, address string) thread.Outcome {
	o := thread.Outcome{Offset: ans.Offset, Address: address, Text: ans.Text, Notary: workspec.ParseNotary(ans.Notary)}
	switch ans.Word {
	case taproto.OK, taproto.OK2, taproto.OK3:
		o.Result = thread.Delivered
	case taproto.Error, taproto.Error2:
		o.Result = thread.Failed
	case taproto.DeferAll, taproto.RetryAt:
		o.Result = thread.HostDeferred
	default:
		o.Result = thread.Deferred
	}
	return o
}

// LeftToUs reports whether the agent leaves it to the scheduler to write an outcome down.
func LeftToUs(w taproto.Word) bool {
	return w != taproto.OK2 && w != taproto.OK3 && w != taproto.Error2
}
