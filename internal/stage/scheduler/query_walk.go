package scheduler

import (
	"iter"

	"zmailer/internal/stage/scheduler/thread"
)

// walk goes over all threads, of which there may be a million, some of them in each turn of
// the engine: deliveries go on between two parts.
type walk struct {
	e    *engine
	next func() (*thread.Thread, bool)
	stop func()
}

func (e *engine) walk() *walk {
	w := &walk{e: e}
	w.next, w.stop = iter.Pull(e.core.All())
	return w
}

// part calls fn for the next threads, at most askedAtOnce; done: there are no more. The
// engine calls it.
func (w *walk) part(fn func(*thread.Thread)) (n int, done bool) {
	for ; n < askedAtOnce; n++ {
		t, ok := w.next()
		if !ok {
			return n, true
		}
		fn(t)
	}
	return n, false
}

// threads calls fn, in the engine, for all threads, askedAtOnce at a time. first is called
// before them in the turn of the first part.
func (q *query) threads(first func(), fn func(*thread.Thread)) error {
	var w *walk
	for done := false; !done; {
		err := q.ask(func() {
			if w == nil {
				w = q.e.walk()
				first()
			}
			n := 0
			n, done = w.part(fn)
			q.visited += n
		})
		if err != nil {
			if w != nil {
				w.stop()
			}
			return err
		}
	}
	return nil
}

// kick has a host tried now, whatever it waits for (ETRN), and has then told how many
// threads that were. It takes some turns.
func (e *engine) kick(name string, then func(threads int)) {
	w, n := e.walk(), 0
	var part func()
	part = func() {
		if _, done := w.part(func(t *thread.Thread) {
			if kicks(t.Host, name) {
				e.core.Kick(t, e.now)
				n++
			}
		}); !done {
			e.box.later(part)
			return
		}
		then(n)
	}
	part()
}
