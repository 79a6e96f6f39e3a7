package scheduler

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"zmailer/internal/stage/scheduler/store"
	"zmailer/internal/stage/scheduler/thread"
	"zmailer/internal/wire/taproto"
)

// A job is taken back from an agent that lives when the agent says that it cannot use the
// file, or when the job has gone without an answer for the clause's answermax. The agent
// may have sent the message all the same: recipients that it has locked are in doubt, and
// no agent gets them until a status line of this one or its end says what became of them.
// Recipients that it has not locked are given out again; should it lock them now, the lock
// keeps the other agent away (M18).

// doubt is a job that was taken back without all of its answers.
type doubt struct {
	m             *thread.Message
	v             *thread.Vertex // until its file was read again
	channel, host string
	attempt       int
	rcpts         []thread.Recipient // with the results known
}

// maxDoubts bounds what is kept of one agent's jobs. An agent that leaves more without an
// answer is one whose answers are not worth waiting for.
const maxDoubts = 1000

// takeBackFrom takes a delivery off an agent that lives.
func (e *engine) takeBackFrom(a *agent, i int) {
	j := a.deliveries[i]
	a.answered(i, e.now)
	if j.v == nil {
		return
	}
	d := &doubt{m: j.v.Message, v: j.v, channel: j.v.Thread.Channel(), host: j.v.Thread.Host,
		attempt: int(j.v.Attempts) + 1, rcpts: slices.Clone(j.v.Recipients())}
	a.doubts = slices.DeleteFunc(a.doubts, d.covers)
	if len(a.doubts) < maxDoubts {
		a.doubts = append(a.doubts, d)
	}
	e.lose(&j)
}

// toldByTag records that a tag, not a status line, has shown a recipient's outcome.
func (e *engine) toldByTag(v *thread.Vertex, r *thread.Recipient, delivered bool) {
	result := thread.Failed
	if delivered {
		result = thread.Delivered
	}
	for a := range e.agents {
		for _, d := range a.doubts {
			if d.v != v {
				continue
			}
			if i := d.find(r.Offset()); i >= 0 && d.rcpts[i].Result == thread.None {
				d.rcpts[i].Result = result
			}
		}
	}
}

// covers reports whether an older doubt is about no recipient that this one is not about, too: the
// agent was given the same recipients again.
func (d *doubt) covers(old *doubt) bool {
	if old.v != d.v {
		return false
	}
	ours := make(map[int64]bool, len(d.rcpts))
	for i := range d.rcpts {
		ours[d.rcpts[i].Offset()] = true
	}
	return !slices.ContainsFunc(old.rcpts, func(r thread.Recipient) bool { return r.Result == thread.None && !ours[r.Offset()] })
}

func (d *doubt) find(offset int64) int {
	return slices.IndexFunc(d.rcpts, func(r thread.Recipient) bool { return r.Offset() == offset })
}

func (d *doubt) answered() bool {
	return !slices.ContainsFunc(d.rcpts, func(r thread.Recipient) bool { return r.Result == thread.None })
}

// late takes an answer about a job that was taken back; false: there is no such job.
func (e *engine) late(a *agent, ans *taproto.Answer) bool {
	for i, d := range a.doubts {
		if d.m.Number != ans.Number {
			continue
		}
		k := d.find(ans.Offset)
		if k < 0 {
			continue
		}
		r := &d.rcpts[k]
		known := r.Result != thread.None
		// The status line decides now; what a tag has told before it confirms.
		o := outcomeOf(ans, r.Address)
		r.Result = o.Result
		if d.answered() {
			a.doubts = slices.Delete(a.doubts, i, i+1)
		}
		if e.messages.get(d.m.Number) == d.m {
			e.lateOutcome(d, &o, ans, known)
		}
		return true
	}
	return false
}

// lateOutcome acts on it: what the agent leaves to us is written down, then the file is
// read again.
func (e *engine) lateOutcome(d *doubt, o *store.Outcome, ans *taproto.Answer, known bool) {
	m := d.m
	if !o.Result.Final() {
		// The agent has given its lock back. The thread may have gone on since, so the
		// recipient waits for itself alone.
		e.counts.Deferrals++
		o.Attempt, o.Next = d.attempt, e.now
		if s := e.conf.Conf.Current().Match(d.channel, d.host); s != nil {
			o.Next = e.now.Add(s.Interval)
		}
		list := []store.Outcome{*o}
		// Crash: without the line the recipient is tried at once.
		e.do(m, op{run: e.writes(m, list)})
		e.logLate("deferred", d, o, slog.String("next", o.Next.Format(time.RFC3339)))
		e.reload(m, nil)
		return
	}
	// Another agent that has been given the recipient finds it done. That is no news then.
	m.Vertices(func(v *thread.Vertex) {
		if r := v.Find(ans.Offset); r != nil && v.Running() && r.Result == thread.None {
			r.Result = o.Result
		}
	})
	if ans.Word != taproto.OK3 {
		m.Owes = true
	}
	if !known {
		e.counts.final(o.Result)
		word := "failed"
		if o.Result == thread.Delivered {
			word = "delivered"
		}
		e.logLate(word, d, o)
	}
	if leftToUs(ans.Word) {
		list := []store.Outcome{*o}
		// Crash before it is written: the recipient is locked by an agent that ends, and
		// is in doubt; after: its tag is final.
		e.do(m, op{run: e.writes(m, list)})
	}
	e.reload(m, nil)
}

// logLate writes the line of a recipient whose answer came after its job was taken back.
func (e *engine) logLate(word string, d *doubt, o *store.Outcome, more ...slog.Attr) {
	id := idOf(d.m)
	code := o.Notary.Status
	if code == "" {
		code = replyCode(store.LastLine(o.Text), o.Result)
	}
	list := append([]slog.Attr{slog.Any("id", id), slog.String("name", d.m.Name()), slog.String("rcpt", o.Address),
		slog.String("channel", d.channel), slog.String("host", d.host), slog.String("status", code), slog.String("reply", store.Cut(store.LastLine(o.Text))),
		slog.Int("attempt", d.attempt), slog.Duration("took", e.now.Sub(id.Time()))}, more...)
	e.log.LogAttrs(context.Background(), slog.LevelInfo, word, list...)
}

// inDoubt reports whether an agent that lives may have the message's file open for a job
// that was taken back from it.
func (e *engine) inDoubt(m *thread.Message) bool {
	for a := range e.agents {
		if len(a.doubts) >= maxDoubts || slices.ContainsFunc(a.doubts, func(d *doubt) bool { return d.m == m }) {
			return true
		}
	}
	return false
}

// forgetDoubts takes an agent's word that nothing is under way in it: no answer comes any
// more for what was taken back. What it left locked is locked until it ends.
func (a *agent) forgetDoubts() {
	if len(a.doubts) > 0 {
		a.doubts, a.locks = nil, true
	}
}

// releaseDoubts has what an agent held locked read again when it has ended.
func (e *engine) releaseDoubts(a *agent) {
	if len(a.doubts) == 0 && !a.locks {
		return
	}
	a.doubts = nil
	e.lockedWait = e.conf.locked
	e.reloadLocked()
}

// overdue takes back the jobs that have gone without an answer for answermax, and ends
// the agents that keep them: they take nothing more, and when nothing else is under way in
// one it is asked to end, then killed.
func (e *engine) overdue() {
	if e.overdueAt.IsZero() || e.now.Before(e.overdueAt) {
		return
	}
	e.overdueAt = time.Time{}
	for a := range e.agents {
		limit := a.crew.settings.AnswerMax
		if limit <= 0 || a.hopeless {
			continue
		}
		late, kept := 0, 0
		for i := len(a.deliveries) - 1; i >= 0; i-- {
			d := &a.deliveries[i]
			if d.v == nil || a.slots <= 1 && i != a.first() {
				continue // answered; or the agent has not come to it
			}
			if at := d.heard.Add(limit); at.After(e.now) {
				e.overdueAt = store.Earliest(e.overdueAt, at)
				kept++
				continue
			}
			e.log.Warn("unanswered", "id", idOf(d.v.Message), "name", d.v.Message.Name(), "pid", a.pid, "host", d.v.Thread.Host,
				"after", store.Since(d.heard, e.now).Round(time.Millisecond))
			e.takeBackFrom(a, i)
			late++
		}
		switch {
		case late == 0:
		case kept > 0:
			a.leave(e)
		default:
			e.dismiss(a)
		}
	}
}

// first is the delivery that an agent with one slot is at work on, -1 if there is none.
func (a *agent) first() int {
	return slices.IndexFunc(a.deliveries, func(d delivery) bool { return d.v != nil })
}
