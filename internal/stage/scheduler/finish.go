package scheduler

import (
	"slices"
	"time"

	"zmailer/internal/stage/scheduler/store"
	"zmailer/internal/stage/scheduler/thread"
)

// settle has reports written that are due, and the message removed if it is done.
func (e *engine) settle(m *thread.Message) {
	var s store.Settled
	said := e.said(m)
	e.do(m, op{
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
			if w := e.busy[m]; w != nil {
				w.ending = false
			}
			if !s.Look.IsZero() {
				// The core counts in milliseconds: before the time nothing is to be done yet.
				e.core.Remind(m, s.Look.Add(time.Millisecond-1))
			}
			if m.Open == 0 || s.Woken {
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
		for _, r := range v.Recipients() {
			said[r.Offset()] = v.Thread.Trouble
		}
	})
	return said
}

// check ends a message without open recipients.
func (e *engine) check(m *thread.Message) {
	if m.Open > 0 || e.messages.get(m.Number) != m {
		return
	}
	if w := e.busy[m]; w != nil && w.ending {
		return
	}
	if m.Owes {
		e.settle(m)
	} else {
		e.do(m, op{ends: true})
	}
	if w := e.busy[m]; w != nil {
		w.ending = true
	}
}

// ending is a message that was delivered and whose files are to go.
type ending struct {
	store.Ending
	m *thread.Message
	w *ops
}

// These bound how messages are finished together: one goroutine takes what has come
// meanwhile, since two that unlink in one directory wait for each other; but several do if
// many wait, since the disk may.
const (
	endsAtOnce = 64
	endsBeside = poolSize / 2
)

// finishAll has the pool finish what was delivered.
func (e *engine) finishAll() {
	for len(e.endings) > 0 && (e.finishing == 0 || len(e.endings) >= endsAtOnce && e.finishing < endsBeside) {
		list := slices.Clone(e.endings[:min(len(e.endings), endsAtOnce)])
		rest := copy(e.endings, e.endings[len(list):])
		clear(e.endings[rest:])
		e.endings = e.endings[:rest]
		e.finishing++
		e.pool.do(func() {
			e.spool.FinishDelivered(func(yield func(*store.Ending) bool) {
				for i := range list {
					if !yield(&list[i].Ending) {
						return
					}
				}
			})
			e.post(func() {
				e.finishing--
				for i := range list {
					e.changed(list[i].m, list[i].w, list[i].Err)
				}
			})
		})
	}
}

// forget drops a message that is gone from the disk.
func (e *engine) forget(m *thread.Message) {
	again := ""
	if w := e.busy[m]; w != nil {
		again = w.again
	}
	e.core.Drop(m, e.now)
	e.counts.MessagesOut++
	delete(e.busy, m)
	delete(e.locked, m)
	delete(e.unserved, m)
	delete(e.obsoleters, m)
	e.messages.remove(m)
	if e.inodes[m.Inode()] == m.Number {
		delete(e.inodes, m.Inode())
	}
	if again != "" {
		e.want(again)
	}
}

// expire gives up on a parked vertex (M27).
func (e *engine) expire(v *thread.Vertex) {
	m := v.Message
	list := v.Recipients()
	offsets := make([]int64, len(list))
	for i := range list {
		offsets[i] = list[i].Offset()
	}
	var held, waiting []int64
	said := v.Thread.Trouble
	e.do(m, op{
		run: func() (err error) {
			held, waiting, err = e.spool.Expire(m.Name(), offsets, said)
			return err
		},
		then: func() {
			m.Owes = true
			if len(held) > 0 {
				e.hold(m)
			}
			e.core.Forget(v)
			m.Open += int32(len(held) + len(waiting))
			e.remindReport(m)
			e.check(m)
		},
	})
}

// remindReport has reports looked at when the interval that gathers failures ends.
func (e *engine) remindReport(m *thread.Message) {
	at := e.now.Add(e.conf.Conf.Current().ReportInterval)
	if w := e.busy[m]; w != nil && w.delay > 0 {
		return // a look follows when the change succeeds
	}
	if had := e.core.Reminder(m); had.IsZero() || at.Before(had) {
		e.core.Remind(m, at)
	}
}
