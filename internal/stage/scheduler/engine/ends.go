package engine

import (
	"time"

	"zmailer/internal/stage/scheduler/store"
	"zmailer/internal/stage/scheduler/thread"
)

// ends is what becomes of a message after its attempts: reports, expiry, its end.
type ends struct {
	*base
	changes    *changes
	intake     *intake
	placement  *placement
	superseder *superseder
	books      *books
}

// settle has reports written that are due, and the message removed if it is done.
func (e *ends) settle(m *thread.Message) {
	var s store.Settled
	said := e.said(m)
	e.changes.do(m, op{
		run: func() (err error) {
			s, err = e.spool.Settle(m.Name(), said)
			return err
		},
		then: func() {
			if s.Finished {
				e.forget(m)
				return
			}
			m.Open -= int32(s.Expired)
			m.Owes = m.Owes || s.Expired > 0
			if w := e.changes.busy[m]; w != nil {
				w.ending = false
			}
			if !s.Look.IsZero() {
				// The core counts in milliseconds: before the time nothing is to be done yet.
				e.core.Remind(m, s.Look.Add(time.Millisecond-1))
			}
			if m.Open == 0 || s.Woken {
				// The file has others.
				e.placement.reload(m, nil)
			}
		},
	})
}

// said returns what hosts in trouble said, for recipients that wait for them untried.
func (e *ends) said(m *thread.Message) map[int64]string {
	var said map[int64]string
	m.Vertices(func(v *thread.Vertex) {
		if v.Thread.Trouble == "" {
			return
		}
		if said == nil {
			said = map[int64]string{}
		}
		for _, r := range v.Recipients() {
			said[r.Offset()] = v.Thread.Trouble
		}
	})
	return said
}

// check ends a message without open recipients.
func (e *ends) check(m *thread.Message) {
	if m.Open > 0 || e.messages.get(m.Number) != m {
		return
	}
	if w := e.changes.busy[m]; w != nil && w.ending {
		return
	}
	if m.Owes {
		e.settle(m)
	} else {
		e.changes.do(m, op{ends: true})
	}
	if w := e.changes.busy[m]; w != nil {
		w.ending = true
	}
}

// forget drops a message that is gone from the disk.
func (e *ends) forget(m *thread.Message) {
	again := ""
	if w := e.changes.busy[m]; w != nil {
		again = w.again
	}
	e.core.Drop(m, e.now)
	e.counts.MessagesOut++
	delete(e.changes.busy, m)
	delete(e.placement.locked, m)
	delete(e.placement.unserved, m)
	delete(e.superseder.superseding, m)
	e.messages.remove(m)
	if e.inodes[m.Inode()] == m.Number {
		delete(e.inodes, m.Inode())
	}
	if again != "" {
		e.intake.want(again)
	}
}

// expire gives up on a parked vertex (M27).
func (e *ends) expire(v *thread.Vertex) {
	m := v.Message
	list := v.Recipients()
	offsets := make([]int64, len(list))
	for i := range list {
		offsets[i] = list[i].Offset()
	}
	var held, waiting []int64
	said := v.Thread.Trouble
	e.changes.do(m, op{
		run: func() (err error) {
			held, waiting, err = e.spool.Expire(m.Name(), offsets, said)
			return err
		},
		then: func() {
			m.Owes = true
			if len(held) > 0 {
				e.placement.hold(m)
			}
			e.core.Forget(v)
			m.Open += int32(len(held) + len(waiting))
			e.remindReport(m)
			e.check(m)
		},
	})
}

// remindReport has reports looked at when the interval that gathers failures ends.
func (e *ends) remindReport(m *thread.Message) {
	at := e.now.Add(e.conf.Conf.Current().ReportInterval)
	if w := e.changes.busy[m]; w != nil && w.delay > 0 {
		return // a look follows when the change succeeds
	}
	if had := e.core.Reminder(m); had.IsZero() || at.Before(had) {
		e.core.Remind(m, at)
	}
}

// remind takes a message's reminder: a change to try again, or a report that is due.
func (e *ends) remind(m *thread.Message) {
	if e.messages.get(m.Number) != m {
		return // an agent has it still, and the disk does not
	}
	if w := e.changes.busy[m]; w != nil && w.delay > 0 {
		if !w.running {
			e.changes.dispatch(m, w)
		}
		return
	}
	e.settle(m)
}

// summarise has the history of a message summarised before the parked vertex v waits again,
// and reports whether it will be. The file is replaced for that, so no agent may have the
// message or be given it: all that waits is parked until then.
func (e *ends) summarise(m *thread.Message, v *thread.Vertex) bool {
	if w := e.changes.busy[m]; w != nil && len(w.list) > 0 || e.stopping {
		return false // what comes before may have something given to an agent
	}
	if e.agents.InDoubt(m) {
		return false // an agent may lock a recipient in the old file, and mark it there
	}
	running := false
	var parked []*thread.Vertex
	m.Vertices(func(v *thread.Vertex) {
		running = running || v.Running()
		if v.Waiting() {
			parked = append(parked, v)
		}
	})
	if running {
		return false
	}
	for _, v := range parked {
		e.core.Park(v, e.now)
	}
	e.changes.do(m, op{
		run: func() error { return e.spool.Summarise(m.Name()) },
		then: func() {
			for _, v := range append(parked, v) {
				e.core.Wait(v, e.now)
			}
		},
	})
	return true
}
