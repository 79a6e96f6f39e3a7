package scheduler

import (
	"slices"
	"strings"

	"zmailer/internal/stage/scheduler/store"
	"zmailer/internal/stage/scheduler/thread"
	"zmailer/internal/wire/taproto"
	"zmailer/internal/workspec"
)

// lines takes what an agent said.
func (e *engine) lines(a *agent, list []taproto.Line) {
	if a.ended {
		return
	}
	a.said = e.now
	for i := range list {
		l := &list[i]
		switch l.Kind {
		case taproto.LineHungry:
			e.hungry(a)
		case taproto.LineAnswer:
			e.answer(a, &l.Answer)
		case taproto.LineResync:
			e.resync(a, l.Name, l.Host)
		case taproto.LineSlots:
			e.claims(a, l.Slots)
		default:
			if l.Text != "" && e.meaningless(a) {
				e.log.Info("agent-said", "pid", a.pid, "text", store.Cut(l.Text))
			}
		}
	}
	if len(a.deliveries) == 0 {
		a.rest(e)
	}
	e.core.Touch(a.crew.ring)
}

// hungry counts a free slot.
func (e *engine) hungry(a *agent) {
	switch {
	case a.idleSaid:
		a.idleSaid = false
		a.free = 1
	case a.slots <= 1 && len(a.deliveries) > 0:
		// One at a time and in order: the oldest is over.
		a.forgetDoubts()
		e.over(a, 0)
		if len(a.deliveries) == 0 {
			a.free = 1
		} else {
			e.promote(a)
		}
	case a.free >= maxSlots, a.claimed && a.free >= a.slots:
		e.meaningless(a)
	default:
		// The #hungry of a start may come in several reads. An agent that does not say how
		// many there will be has as many slots as were free at once.
		a.free++
		a.slots = max(a.slots, a.free)
		if a.free == a.slots {
			// All slots are free, so nothing is under way, whatever was not answered.
			a.forgetDoubts()
			for len(a.deliveries) > 0 {
				e.over(a, len(a.deliveries)-1)
			}
		}
	}
}

// maxSlots bounds the slots that an agent may have.
const maxSlots = 1 << 16

// claims takes an agent's word how many slots it has.
func (e *engine) claims(a *agent, slots int) {
	if a.slots > 0 || slots < 2 || slots > maxSlots {
		e.meaningless(a)
		return
	}
	a.slots, a.claimed = slots, true
}

// over ends a delivery that the agent is done with; what it did not answer is looked up
// in the file.
func (e *engine) over(a *agent, i int) {
	j := a.drop(i)
	if j.v == nil {
		return
	}
	if j.hostTrouble() {
		// The word was about every recipient of the host.
		e.end(&j)
		return
	}
	e.log.Warn("unanswered", "id", idOf(j.v.Message), "name", j.v.Message.Name(), "pid", a.pid, "host", j.v.Thread.Host)
	e.lose(&j)
}

// hostTrouble gives the recipients without an answer that of the host, if there is
// one (deferall, retryat).
func (j *delivery) hostTrouble() bool {
	i := slices.IndexFunc(j.outcomes, func(o store.Outcome) bool { return o.Result == thread.HostDeferred })
	if i < 0 {
		return false
	}
	list := j.v.Recipients()
	for k := range list {
		r := &list[k]
		if r.Result == thread.None {
			r.Result = thread.HostDeferred
			o := j.outcomes[i]
			o.Offset, o.Address = r.Offset(), r.Address
			j.outcomes = append(j.outcomes, o)
		}
	}
	return true
}

// lose takes a vertex back from an agent that did not answer for all of it.
func (e *engine) lose(j *delivery) {
	v, m := j.v, j.v.Message
	e.core.Stop(v, e.now)
	if e.messages.get(m.Number) != m {
		e.core.Forget(v)
		return
	}
	// What was answered counts; the tags of the rest tell.
	if len(j.outcomes) > 0 {
		list := slices.DeleteFunc(slices.Clone(j.outcomes), func(o store.Outcome) bool { return !o.Result.Final() })
		if len(list) < len(j.outcomes) {
			v.Lost++ // a deferral is among them: no second try at once
		}
		if len(list) > 0 {
			e.do(m, op{run: e.writes(m, list)})
		}
	}
	e.reload(m, v)
}

// resync takes an agent's word that it cannot use a file. An agent with several slots may
// have several jobs of one message; one that does not say which of them it means, as
// ZMailer's, loses all of them.
func (e *engine) resync(a *agent, name, host string) {
	found := false
	for i := len(a.deliveries) - 1; i >= 0; i-- {
		if a.slots <= 1 {
			i = max(a.first(), 0) // it does them in order
		}
		v := a.deliveries[i].v
		if v == nil || !v.Message.Named(name) || host != "" && !strings.EqualFold(host, v.Thread.Host) {
			if a.slots <= 1 {
				break
			}
			continue
		}
		found = true
		e.log.Info("resync", "id", idOf(v.Message), "name", name, "pid", a.pid, "host", v.Thread.Host)
		if host != "" {
			// It is sure which job it means, and nothing of that is under way.
			j := a.deliveries[i]
			a.answered(i, e.now)
			a.locks = true
			e.lose(&j)
		} else {
			e.takeBackFrom(a, i)
		}
		if a.slots <= 1 {
			e.promote(a)
			break
		}
	}
	if !found && e.meaningless(a) {
		e.log.Warn("agent-said", "pid", a.pid, "text", store.Cut("#resync "+name), "reason", "it has no such delivery")
	}
}

// answer takes one recipient's outcome.
func (e *engine) answer(a *agent, ans *taproto.Answer) {
	i, rcpt := a.find(ans)
	if rcpt == nil {
		if e.late(a, ans) {
			a.crew.failures, a.junk = 0, 0
			return
		}
		if !e.meaningless(a) {
			return
		}
		e.log.Warn("agent-said", "pid", a.pid, "number", ans.Number, "offset", ans.Offset, "status", ans.Word, "text", store.Cut(ans.Text),
			"reason", "it has no such delivery; ignored")
		if m := e.messages.get(ans.Number); m != nil && e.busy[m] == nil {
			e.reload(m, nil)
		}
		return
	}
	j := &a.deliveries[i]
	v := j.v
	j.heard = e.now
	rcpt.Result = e.result(j, rcpt, ans)
	a.crew.failures, a.junk = 0, 0
	if rcpt.Result.Final() {
		e.counts.final(rcpt.Result)
		e.logFinal(v, rcpt, ans)
	}
	if !v.Answered() {
		return
	}
	done := *j
	a.answered(i, e.now)
	e.end(&done)
	if a.slots <= 1 {
		e.promote(a)
	}
}

// promote counts what a one-slot agent comes to next.
func (e *engine) promote(a *agent) {
	if i := a.first(); i >= 0 {
		a.deliveries[i].heard = e.now
		e.core.Promote(a.deliveries[i].v, e.now)
	}
}

// result turns an answer into the core's terms and keeps what has to be recorded.
func (e *engine) result(j *delivery, rcpt *thread.Recipient, ans *taproto.Answer) thread.Result {
	o := outcomeOf(ans, rcpt.Address)
	switch ans.Word {
	case taproto.OK, taproto.OK2, taproto.Error, taproto.Error2:
		j.report = true
	case taproto.DeferAll, taproto.RetryAt:
		j.wait.Text = store.LastLine(ans.Text)
		j.wait.Busy = strings.HasPrefix(j.wait.Text, "421") // RFC 5321 §3.8
		if ans.Word == taproto.RetryAt {
			at := ans.At
			if ans.Relative {
				at = e.now.Add(ans.After)
			}
			if at.After(j.wait.Until) {
				j.wait.Until = at
			}
		}
	}
	if leftToUs(ans.Word) {
		j.outcomes = append(j.outcomes, o)
	}
	if ans.Word != taproto.OK3 {
		j.v.Message.Owes = true
	}
	return o.Result
}

// outcomeOf is what an answer says of the recipient.
func outcomeOf(ans *taproto.Answer, address string) store.Outcome {
	o := store.Outcome{Offset: ans.Offset, Address: address, Text: ans.Text, Notary: workspec.ParseNotary(ans.Notary)}
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

// leftToUs reports whether the agent leaves it to the scheduler to write an outcome down.
func leftToUs(w taproto.Word) bool {
	return w != taproto.OK2 && w != taproto.OK3 && w != taproto.Error2
}

// end ends an attempt whose recipients are all answered.
func (e *engine) end(j *delivery) {
	v, m := j.v, j.v.Message
	t := v.Thread
	spent := e.stages(v)
	round := e.core.End(v, j.wait, e.now)
	if e.messages.get(m.Number) != m {
		if round.Left > 0 {
			e.core.Forget(v)
		}
		return
	}
	for i := range j.outcomes {
		o := &j.outcomes[i]
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
		e.logDeferred(v, j.outcomes, round, spent)
	}
	if j.report {
		e.remindReport(m)
	}
	if len(j.outcomes) > 0 {
		e.record(m, v, j.outcomes, round)
		return
	}
	e.check(m)
}

// record writes outcomes down and only then acts on them (A5).
func (e *engine) record(m *thread.Message, v *thread.Vertex, list []store.Outcome, round thread.Round) {
	var rec store.Recorded
	e.do(m, op{
		run: func() (err error) {
			rec, err = e.spool.Record(m.Name(), list)
			return err
		},
		then: func() {
			e.touched(m, rec.ID)
			e.log.Debug("recorded", "id", idOf(m), "name", m.Name(), "outcomes", len(list))
			left := round.Left > 0
			if left && len(rec.Taken) > 0 {
				left = e.takeBack(m, v, &rec)
			}
			switch {
			case left && round.Expired:
				e.expire(v)
			case left && rec.Long && e.summarise(m, v):
			case left:
				e.core.Wait(v, e.now)
			}
			e.check(m)
		},
	})
}

// writes returns what records outcomes that nothing follows from.
func (e *engine) writes(m *thread.Message, list []store.Outcome) func() error {
	return func() error {
		_, err := e.spool.Record(m.Name(), list)
		return err
	}
}
