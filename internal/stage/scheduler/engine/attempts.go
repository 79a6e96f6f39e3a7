package engine

import (
	"log/slog"
	"slices"
	"time"

	"zmailer/internal/stage/scheduler/agents"
	"zmailer/internal/stage/scheduler/events"
	"zmailer/internal/stage/scheduler/store"
	"zmailer/internal/stage/scheduler/thread"
	"zmailer/internal/wire/taproto"
)

// attempts is the engine as the owner of the agents: what their answers mean for messages.
type attempts struct{ *engine }

// Given implements agents.Owner.
func (e *attempts) Given(_ *agents.Agent, v *thread.Vertex) {
	e.counts.Attempts++
	e.meters.attempts.With(v.Thread.Channel(), clauseOf(v.Thread)).Add(1)
}

func clauseOf(t *thread.Thread) string {
	if g := agents.GroupOf(t.Ring); g != nil {
		return g.Settings().Clause
	}
	return ""
}

// Answered implements agents.Owner.
func (e *attempts) Answered(v *thread.Vertex, r *thread.Recipient, ans *taproto.Answer) {
	e.counts.Final(r.Result)
	e.logFinal(v, r, ans)
}

// Stray implements agents.Owner.
func (e *attempts) Stray(number uint64) {
	if m := e.messages.get(number); m != nil && e.changes.busy[m] == nil {
		e.placement.reload(m, nil)
	}
}

// Unlocked implements agents.Owner.
func (e *attempts) Unlocked() {
	e.placement.lockedWait = e.conf.locked
	e.placement.reloadLocked()
}

// Lost implements agents.Owner.
func (e *attempts) Lost(j *agents.Job) {
	v, m := j.Vertex, j.Vertex.Message
	e.core.Stop(v, e.now)
	if e.messages.get(m.Number) != m {
		e.core.Forget(v)
		return
	}
	// What was answered counts; the tags of the rest tell.
	if len(j.Outcomes) > 0 {
		list := slices.DeleteFunc(slices.Clone(j.Outcomes), func(o thread.Outcome) bool { return !o.Result.Final() })
		if len(list) < len(j.Outcomes) {
			v.Lost++ // a deferral is among them: no second try at once
		}
		if len(list) > 0 {
			e.changes.do(m, op{run: e.writes(m, list)})
		}
	}
	e.placement.reload(m, v)
}

// Done implements agents.Owner.
func (e *attempts) Done(j *agents.Job) {
	v, m := j.Vertex, j.Vertex.Message
	t := v.Thread
	spent := e.stages(v)
	round := e.core.End(v, j.Wait, e.now)
	if e.messages.get(m.Number) != m {
		if round.Left > 0 {
			e.core.Forget(v)
		}
		return
	}
	for i := range j.Outcomes {
		o := &j.Outcomes[i]
		if o.Result.Final() {
			continue
		}
		o.Attempt, o.Next = round.Attempt, round.Next
		if round.Host {
			o.HostTries = t.Tries()
		}
	}
	if round.Left > 0 {
		e.counts.Deferrals += uint64(round.Left)
		e.logDeferred(v, j.Outcomes, round, spent)
	}
	if j.Report {
		e.ends.remindReport(m)
	}
	if len(j.Outcomes) > 0 {
		e.record(m, v, j.Outcomes, round)
		return
	}
	e.ends.check(m)
}

// Late implements agents.Owner: what the agent leaves to us is written down, then the
// file is read again.
func (e *attempts) Late(d *agents.Doubt, o *thread.Outcome, word taproto.Word, known bool) {
	m := d.Message
	if e.messages.get(m.Number) != m {
		return
	}
	if !o.Result.Final() {
		// The agent has given its lock back. The thread may have gone on since, so the
		// recipient waits for itself alone.
		e.counts.Deferrals++
		o.Attempt, o.Next = d.Attempt, e.now
		if s := e.conf.Conf.Current().Match(d.Channel, d.Host); s != nil {
			o.Next = e.now.Add(s.Interval)
		}
		list := []thread.Outcome{*o}
		// Crash: without the line the recipient is tried at once.
		e.changes.do(m, op{run: e.writes(m, list)})
		e.logLate(events.Deferred, d, o, slog.String("next", o.Next.Format(time.RFC3339)))
		e.placement.reload(m, nil)
		return
	}
	// Another agent that has been given the recipient finds it done. That is no news then.
	m.Vertices(func(v *thread.Vertex) {
		if r := v.Find(o.Offset); r != nil && v.Running() && r.Result == thread.None {
			r.Result = o.Result
		}
	})
	if word != taproto.OK3 {
		m.Owes = true
	}
	if !known {
		e.counts.Final(o.Result)
		e.logLate(endOf(o.Result), d, o)
	}
	if agents.LeftToUs(word) {
		list := []thread.Outcome{*o}
		// Crash before it is written: the recipient is locked by an agent that ends, and
		// is in doubt; after: its tag is final.
		e.changes.do(m, op{run: e.writes(m, list)})
	}
	e.placement.reload(m, nil)
}

// logLate writes the line of a recipient whose answer came after its job was taken back.
func (e *attempts) logLate(k events.Kind, d *agents.Doubt, o *thread.Outcome, more ...slog.Attr) {
	id := idOf(d.Message)
	code, reply := o.Notary.Status, thread.LastLine(o.Text)
	if code == "" {
		code = replyCode(reply, o.Result)
	}
	list := append([]slog.Attr{slog.Any("id", id), slog.String("name", d.Message.Name()), slog.String("rcpt", o.Address),
		slog.String("channel", d.Channel), slog.String("host", d.Host), slog.String("status", code), slog.String("reply", store.Cut(reply)),
		slog.Int("attempt", d.Attempt), slog.Duration("took", e.now.Sub(id.Time()))}, more...)
	e.emitter().EmitAttrs(k, list...)
}

// record writes outcomes down and only then acts on them (A5).
func (e *attempts) record(m *thread.Message, v *thread.Vertex, list []thread.Outcome, round thread.Round) {
	var rec store.Recorded
	e.changes.do(m, op{
		run: func() (err error) {
			rec, err = e.spool.Record(m.Name(), list)
			return err
		},
		then: func() {
			e.ends.touched(m, rec.ID)
			e.log.Debug("recorded", "id", idOf(m), "name", m.Name(), "outcomes", len(list))
			left := round.Left > 0
			if left && len(rec.Taken) > 0 {
				left = e.ends.takeBack(m, v, &rec)
			}
			switch {
			case left && round.Expired:
				e.ends.expire(v)
			case left && rec.Long && e.ends.summarise(m, v):
			case left:
				e.core.Wait(v, e.now)
			}
			e.ends.check(m)
		},
	})
}

// feed gives what is ready in a ring to its agents.
func (e *attempts) feed(r *thread.Ring) {
	g := agents.GroupOf(r)
	switch {
	case g == nil || e.stopping || e.startsNothing():
	case !g.Retired():
		e.agents.Feed(g)
	case e.agents.Withdraw(g):
		// Messages came to a ring that is no more, as when an attempt ended that was begun before.
		r.Threads(func(t *thread.Thread) { e.placement.reloadThread(t) })
	}
}

// writes returns what records outcomes that nothing follows from.
func (e *attempts) writes(m *thread.Message, list []thread.Outcome) func() error {
	return func() error {
		_, err := e.spool.Record(m.Name(), list)
		return err
	}
}
