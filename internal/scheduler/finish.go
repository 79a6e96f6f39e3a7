package scheduler

import (
	"zmailer/internal/scheduler/thread"
)

// settle has reports written that are due, and the message removed if it is done.
func (e *engine) settle(m *thread.Message) {
	var s Settled
	said := e.said(m)
	e.do(m, op{
		run: func() (err error) {
			s, err = e.spool.Settle(m.Name, said)
			return err
		},
		then: func() {
			if s.Finished {
				e.forget(m)
				return
			}
			if w := e.busy[m]; w != nil {
				w.ending = false
			}
			if !s.Look.IsZero() {
				e.core.Remind(m, s.Look)
			}
			if m.Open == 0 {
				// The file says otherwise.
				e.reload(m, nil)
			}
		},
	})
}

// said is what hosts in trouble said, for recipients that wait for them untried.
func (e *engine) said(m *thread.Message) map[int64]string {
	var said map[int64]string
	m.Vertices(func(v *thread.Vertex) {
		if v.Thread.Trouble == "" {
			return
		}
		if said == nil {
			said = map[int64]string{}
		}
		for i := range v.Recipients {
			said[v.Recipients[i].Offset] = v.Thread.Trouble
		}
	})
	return said
}

// check ends a message without open recipients.
func (e *engine) check(m *thread.Message) {
	if m.Open > 0 || e.messages[m.Number] != m {
		return
	}
	if w := e.busy[m]; w != nil && w.ending {
		return
	}
	if m.Owes {
		e.settle(m)
	} else {
		name := m.Name
		e.do(m, op{
			run: func() error { return e.po.Finish(name) },
			then: func() {
				e.log.Debug("finished", "id", idOf(m), "name", name)
				e.forget(m)
			},
		})
	}
	if w := e.busy[m]; w != nil {
		w.ending = true
	}
}

// forget drops a message that is gone from the disk.
func (e *engine) forget(m *thread.Message) {
	again := ""
	if w := e.busy[m]; w != nil {
		again = w.again
	}
	e.core.Drop(m, e.now)
	delete(e.busy, m)
	delete(e.locked, m)
	if e.messages[m.Number] == m {
		delete(e.messages, m.Number)
	}
	if again != "" {
		e.want(again)
	}
}

// vanish drops a message whose files were taken away under us (K10).
func (e *engine) vanish(m *thread.Message, err error) {
	e.log.Warn("vanished", "id", idOf(m), "name", m.Name, "open", m.Open, "reason", err)
	e.forget(m)
}

// expire gives up on a parked vertex (M27).
func (e *engine) expire(v *thread.Vertex) {
	m := v.Message
	offsets := make([]int64, len(v.Recipients))
	for i := range v.Recipients {
		offsets[i] = v.Recipients[i].Offset
	}
	var held []int64
	name, said := m.Name, v.Thread.Trouble
	e.do(m, op{
		run: func() (err error) {
			held, err = e.spool.Expire(name, offsets, said)
			return err
		},
		then: func() {
			m.Owes = true
			if len(held) > 0 {
				e.locked[m] = true
			}
			e.core.Forget(v)
			m.Open += len(held)
			e.remindReport(m)
			e.check(m)
		},
	})
}

// remindReport has reports looked at when the interval that gathers failures ends.
func (e *engine) remindReport(m *thread.Message) {
	at := e.now.Add(e.conf.Conf.ReportInterval)
	if w := e.busy[m]; w != nil && w.delay > 0 {
		return // a look follows when the change succeeds
	}
	if had := m.Reminder(); had.IsZero() || at.Before(had) {
		e.core.Remind(m, at)
	}
}
