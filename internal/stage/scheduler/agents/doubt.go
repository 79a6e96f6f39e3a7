package agents

import (
	"slices"
	"time"

	"zmailer/internal/stage/scheduler/thread"
	"zmailer/internal/wire/taproto"
)

// A job is taken back from an agent that lives when the agent reports that it cannot use
// the file, or when the job has gone without an answer for the clause's answermax. The
// agent may have sent the message all the same: recipients that it has locked are in
// doubt, and no agent gets them until a status line of this one or its end shows what
// became of them. Recipients that it has not locked are given out again; should it lock
// them now, the lock keeps the other agent away (M18).

// Doubt is a job that was taken back without all of its answers.
type Doubt struct {
	Message       *thread.Message
	Channel, Host string
	Attempt       int

	vertex *thread.Vertex     // until its file was read again
	rcpts  []thread.Recipient // with the results known
}

// maxDoubts bounds what is kept of one agent's jobs. An agent that leaves more without an
// answer is one whose answers are not worth waiting for.
const maxDoubts = 1000

// covers reports whether an older doubt is about no recipient that this one is not about, too: the
// agent was given the same recipients again.
func (d *Doubt) covers(old *Doubt) bool {
	if old.vertex != d.vertex {
		return false
	}
	ours := make(map[int64]bool, len(d.rcpts))
	for i := range d.rcpts {
		ours[d.rcpts[i].Offset()] = true
	}
	return !slices.ContainsFunc(old.rcpts, func(r thread.Recipient) bool { return r.Result == thread.None && !ours[r.Offset()] })
}

func (d *Doubt) find(offset int64) int {
	return slices.IndexFunc(d.rcpts, func(r thread.Recipient) bool { return r.Offset() == offset })
}

func (d *Doubt) answered() bool {
	return !slices.ContainsFunc(d.rcpts, func(r thread.Recipient) bool { return r.Result == thread.None })
}

// takeBack takes a job off an agent that lives.
func (a *Agent) takeBack(i int) {
	j := a.jobs.list[i]
	a.jobs.answered(i, a.pool.now)
	v := j.Vertex
	if v == nil {
		return
	}
	d := &Doubt{Message: v.Message, vertex: v, Channel: v.Thread.Channel(), Host: v.Thread.Host,
		Attempt: int(v.Attempts) + 1, rcpts: slices.Clone(v.Recipients())}
	a.doubts = slices.DeleteFunc(a.doubts, d.covers)
	if len(a.doubts) < maxDoubts {
		a.doubts = append(a.doubts, d)
	}
	a.pool.owner.Lost(&j)
}

// late takes an answer about a job that was taken back; false: there is no such job.
func (a *Agent) late(ans *taproto.Answer) bool {
	for i, d := range a.doubts {
		if d.Message.Number != ans.Number {
			continue
		}
		k := d.find(ans.Offset)
		if k < 0 {
			continue
		}
		r := &d.rcpts[k]
		known := r.Result != thread.None
		// The status line decides now; what a tag has shown before it confirms.
		o := outcomeOf(ans, r.Address)
		r.Result = o.Result
		if d.answered() {
			a.doubts = slices.Delete(a.doubts, i, i+1)
		}
		a.pool.owner.Late(d, &o, ans.Word, known)
		return true
	}
	return false
}

// ShownByTag records that a tag, not a status line, has shown a recipient's outcome.
func (p *Pool) ShownByTag(v *thread.Vertex, offset int64, result thread.Result) {
	for _, a := range p.agents {
		for _, d := range a.doubts {
			if d.vertex != v {
				continue
			}
			if i := d.find(offset); i >= 0 && d.rcpts[i].Result == thread.None {
				d.rcpts[i].Result = result
			}
		}
	}
}

// InDoubt reports whether an agent that lives may have the message's file open for a job
// that was taken back from it.
func (p *Pool) InDoubt(m *thread.Message) bool {
	for _, a := range p.agents {
		if len(a.doubts) >= maxDoubts || slices.ContainsFunc(a.doubts, func(d *Doubt) bool { return d.Message == m }) {
			return true
		}
	}
	return false
}

// forgetDoubts takes the report of an agent that nothing is under way in it: no answer comes any
// more for what was taken back. What it left locked is locked until it ends.
func (a *Agent) forgetDoubts() {
	if len(a.doubts) > 0 {
		a.doubts, a.locks = nil, true
	}
}

// releaseDoubts has what an agent held locked read again when it has ended.
func (a *Agent) releaseDoubts() {
	if len(a.doubts) > 0 || a.locks {
		a.doubts = nil
		a.pool.owner.Unlocked()
	}
}

// overdue takes back the jobs that have gone without an answer for answermax, and ends
// the agents that keep them: they take nothing more, and when nothing else is under way in
// one it is asked to end, then killed.
func (p *Pool) overdue() {
	if p.overdueAt.IsZero() || p.now.Before(p.overdueAt) {
		return
	}
	p.overdueAt = time.Time{}
	for _, a := range p.agents {
		if limit := a.group.settings.AnswerMax; limit > 0 && !a.hopeless {
			a.overdue(limit)
		}
	}
}

func (a *Agent) overdue(limit time.Duration) {
	p := a.pool
	late, kept := 0, 0
	for i := len(a.jobs.list) - 1; i >= 0; i-- {
		j := &a.jobs.list[i]
		if j.Vertex == nil || a.jobs.slots <= 1 && i != a.jobs.first() {
			continue // answered; or the agent has not come to it
		}
		if at := j.heard.Add(limit); at.After(p.now) {
			p.overdueAt = earliest(p.overdueAt, at)
			kept++
			continue
		}
		m := j.Vertex.Message
		p.log.Warn("unanswered", "id", idOf(m), "name", m.Name(), "pid", a.pid, "host", j.Vertex.Thread.Host,
			"after", max(p.now.Sub(j.heard), 0).Round(time.Millisecond))
		a.takeBack(i)
		late++
	}
	switch {
	case late == 0:
	case kept > 0:
		a.leave()
	default:
		a.dismiss()
	}
}
