package engine

import (
	"slices"
	"time"

	"zmailer/internal/stage/scheduler/store"
	"zmailer/internal/stage/scheduler/thread"
	"zmailer/internal/workspec"
)

// placement keeps the recipients in the threads in line with the specifications.
type placement struct {
	*base
	changes         *changes
	ends            *ends
	attempts        *attempts
	reconfiguration *reconfiguration

	locked     map[*thread.Message]bool // with recipients that another process has locked
	unserved   map[*thread.Message]bool // with recipients that nothing serves
	lockedAt   time.Time                // when the locked ones are looked at
	lockedWait time.Duration            // how long that was put off
}

// lockedAfter is how long after a specification was read whose recipients the agent of
// a scheduler that died holds, it is read again: that agent ends when its deliveries do,
// and no process reports that. The wait doubles until the looks at transport/ come as often.
const lockedAfter = time.Second

// hold has a message looked at again of which a process that is not ours has locked
// recipients (M18).
func (e *placement) hold(m *thread.Message) {
	e.locked[m] = true
	if e.lockedAt.IsZero() && e.lockedWait < e.conf.Look {
		e.lockedAt = e.now.Add(e.lockedWait)
	}
}

// lookAtLocked reads what was locked, when its time has come.
func (e *placement) lookAtLocked() {
	if e.lockedAt.IsZero() || e.now.Before(e.lockedAt) {
		return
	}
	e.lockedAt = time.Time{}
	if e.stopping {
		return
	}
	e.lockedWait *= 2
	e.reloadLocked()
}

// reloadLocked reads what was locked; what is so still is held again.
func (e *placement) reloadLocked() {
	if len(e.locked) == 0 {
		e.lockedWait = e.conf.tuning.locked
	}
	for m := range e.locked {
		if e.changes.busy[m] != nil {
			e.hold(m)
			continue
		}
		e.reload(m, nil)
	}
}

// reload reads a message's specification again and brings its vertices in line. lost
// is a vertex whose attempt ended without all its answers.
func (e *placement) reload(m *thread.Message, lost *thread.Vertex) {
	var l *store.Loaded
	e.changes.do(m, op{
		run: func() (err error) {
			l, err = e.spool.Reload(m.Name())
			return err
		},
		then: func() { e.reloaded(m, l, lost) },
	})
}

func (e *placement) reloaded(m *thread.Message, l *store.Loaded, lost *thread.Vertex) {
	delete(e.locked, m)
	if l.Gone {
		e.ends.forget(m)
		return
	}
	m.SetName(l.Name)
	m.SetAway(l.Away)
	m.Owes, m.Total = true, int32(l.Total)
	e.ends.touched(m, l.ID)
	open := make(map[int64]*store.Waiting, len(l.Open))
	moved := false
	for i := range l.Open {
		w := &l.Open[i]
		open[w.Offset] = w
		moved = m.SetMoves(w.Offset, w.Moves) || moved
	}
	if moved {
		e.core.Ask(m, e.now)
	}
	inVertex := map[int64]bool{}
	m.Vertices(func(v *thread.Vertex) {
		switch {
		case v == lost:
			e.resumeLost(v, l, open)
		case v.Waiting():
			e.trim(v, open)
		}
		// It may have ended; its list is empty then.
		for _, r := range v.Recipients() {
			inVertex[r.Offset()] = true
		}
	})
	rest := slices.DeleteFunc(l.Open, func(w store.Waiting) bool { return inVertex[w.Offset] })
	aside := 0
	for _, off := range l.Aside {
		// One that an agent is given at this moment is counted with the others of its vertex.
		if !inVertex[off] {
			aside++
		}
	}
	m.Open = int32(aside + len(rest) + len(inVertex))
	e.goesBy(m, l)
	e.place(m, rest)
	if !l.Look.IsZero() {
		e.core.Remind(m, l.Look)
	}
	e.ends.check(m)
}

// trim takes out of a waiting vertex what others have done or are doing.
func (e *placement) trim(v *thread.Vertex, open map[int64]*store.Waiting) {
	list := v.Recipients()
	for i := range list {
		if stays(&list[i], open) {
			continue
		}
		e.core.Park(v, e.now)
		if e.core.Keep(v, func(r *thread.Recipient) bool { return stays(r, open) }) {
			e.core.Wait(v, e.now)
		}
		return
	}
}

// stays reports whether the file still has a recipient at its place, open and free. A
// file that was replaced may have another one there.
func stays(r *thread.Recipient, open map[int64]*store.Waiting) bool {
	w := open[r.Offset()]
	return w != nil && !w.Locked && w.Address == r.Address
}

// resumeLost takes up a vertex whose agent died or did not answer: recipients that are final
// in the file are done, the rest is tried again. The second time in a row that
// counts as a failed attempt, so that a message that kills its agents does not do
// so all day.
func (e *placement) resumeLost(v *thread.Vertex, l *store.Loaded, open map[int64]*store.Waiting) {
	m := v.Message
	rcpts := v.Recipients()
	for i := range rcpts {
		r := &rcpts[i]
		if delivered, done := l.Final[r.Offset()]; done && !r.Result.Final() {
			e.attempts.logTagged(v, r, delivered)
			e.agents.ShownByTag(v, r.Offset(), resultOf(delivered))
		}
	}
	if !e.core.Keep(v, func(r *thread.Recipient) bool { return stays(r, open) }) {
		return
	}
	if v.Lost++; v.Lost < 2 {
		e.core.Wait(v, e.now)
		return
	}
	next := e.core.Defer(v, e.now)
	rcpts = v.Recipients()
	list := make([]store.Outcome, len(rcpts))
	for i := range rcpts {
		list[i] = store.Outcome{Offset: rcpts[i].Offset(), Address: rcpts[i].Address, Result: thread.Deferred, Attempt: int(v.Attempts), Next: next,
			Text: "the transport agent ended without an answer", Notary: workspec.Notary{Status: "4.3.0"}}
	}
	e.attempts.logDeferred(v, list, thread.Round{Attempt: int(v.Attempts), Next: next}, stages{routing: -1, queue: -1, delivery: -1})
	e.attempts.record(m, v, list, thread.Round{Left: len(list)})
}

// obey has recipients tried now for which an operator wants that: they leave the vertices
// that wait, and what makes their hosts wait is forgotten. The caller places them anew.
func (e *placement) obey(m *thread.Message, l *store.Loaded) {
	hurry := map[int64]bool{}
	for i := range l.Open {
		if w := &l.Open[i]; w.Hurry && !w.Locked {
			hurry[w.Offset] = true
		}
	}
	if len(hurry) == 0 {
		return
	}
	m.Vertices(func(v *thread.Vertex) {
		if !v.Waiting() || !slices.ContainsFunc(v.Recipients(), func(r thread.Recipient) bool { return hurry[r.Offset()] }) {
			return
		}
		e.core.Relent(v.Thread, e.now)
		e.core.Park(v, e.now)
		e.core.Forget(v)
	})
}

// takeBack takes recipients out of a parked vertex about which an operator has decided
// while an agent had them. It reports whether others are left.
func (e *ends) takeBack(m *thread.Message, v *thread.Vertex, rec *store.Recorded) (left bool) {
	waiting := int32(len(rec.Taken) - len(rec.Ended))
	left = e.core.Keep(v, func(r *thread.Recipient) bool { return !rec.Taken[r.Offset()] })
	m.Open += waiting
	m.Owes = true
	e.core.Remind(m, e.now)
	return left
}
