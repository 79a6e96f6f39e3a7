package engine

import (
	"errors"
	"slices"
	"time"

	"zmailer/internal/postoffice"
	"zmailer/internal/stage/scheduler/store"
	"zmailer/internal/stage/scheduler/thread"
	"zmailer/internal/workspec"
)

// changes are what is under way on the disk: those of one message are made one after the
// other.
type changes struct {
	*base
	ends   *ends
	intake *intake

	busy      map[*thread.Message]*ops
	endings   []ending // messages that were delivered, see finishAll
	finishing int      // lots of them that the pool has
}

// ops are the changes of one message that are to be made one after the other.
type ops struct {
	list    []op
	running bool
	delay   time.Duration // before the next try of one that failed; 0: none failed
	ending  bool          // the message's end is among them
	again   string        // a name with the message's number that came meanwhile
}

// op is one change. Its run may read the message's name, which no other op changes
// meanwhile; taken earlier, it may have been changed since.
type op struct {
	run  func() error // by the pool
	then func()       // by the engine, when run succeeded
	ends bool         // instead of both: the message was delivered, its files go
}

// do makes a change of a message when those before it are made. One that fails is
// tried again until it succeeds; one whose file is gone ends the message.
func (e *changes) do(m *thread.Message, o op) *ops {
	w := e.busy[m]
	if w == nil {
		w = &ops{}
		e.busy[m] = w
	}
	w.list = append(w.list, o)
	if !w.running && w.delay == 0 {
		e.dispatch(m, w)
	}
	return w
}

func (e *changes) dispatch(m *thread.Message, w *ops) {
	w.running = true
	if w.list[0].ends {
		e.endings = append(e.endings, ending{store.Ending{ID: idOf(m), Name: m.Name(), Total: int(m.Total)}, m, w})
		return
	}
	run := w.list[0].run
	e.pool.do(func() {
		err := run()
		e.post(func() { e.changed(m, w, err) })
	})
}

// changed takes the end of a change.
func (e *changes) changed(m *thread.Message, w *ops, err error) {
	w.running = false
	if e.busy[m] != w {
		return // the message is gone
	}
	switch {
	case errors.Is(err, postoffice.ErrGone):
		e.ends.vanish(m, err)
		return
	case errors.Is(err, store.ErrMessageGone), errors.Is(err, store.ErrCut), errors.Is(err, store.ErrUnreported), errors.Is(err, workspec.ErrUnknownFormat), errors.As(err, new(*workspec.SyntaxError)):
		// Its tags show what was done when it can be read again.
		name := m.Name()
		e.ends.forget(m)
		e.intake.refuse(name, err)
		return
	case err != nil:
		// A full or failing disk: back off, say so once, go on (K12).
		if w.delay == 0 {
			e.log.Error("disk", "id", idOf(m), "name", m.Name(), "reason", err, "retry", "until it works")
		}
		w.delay = min(max(2*w.delay, time.Second), time.Minute)
		e.core.Remind(m, e.now.Add(w.delay))
		return
	}
	o := w.list[0]
	w.list = w.list[1:]
	recovered := w.delay > 0
	w.delay = 0
	switch {
	case o.ends:
		e.ends.forget(m)
	case o.then != nil:
		o.then()
	}
	if e.busy[m] != w {
		return
	}
	if recovered {
		// The reminder was used for the retries.
		e.core.Remind(m, e.now)
	}
	if w.running {
		return
	}
	if len(w.list) > 0 {
		e.dispatch(m, w)
		return
	}
	delete(e.busy, m)
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
func (e *changes) finishAll() {
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
