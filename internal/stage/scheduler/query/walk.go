package query

import (
	"iter"

	"zmailer/internal/stage/scheduler/thread"
)

// Walk goes over all threads, of which there may be a million, some of them in each turn of
// the engine: deliveries go on between two parts.
type Walk struct {
	next func() (*thread.Thread, bool)
	stop func()
}

// NewWalk begins one.
func NewWalk(c *thread.Core) *Walk {
	w := &Walk{}
	w.next, w.stop = iter.Pull(c.All())
	return w
}

// Part calls fn for the next threads, at most askedAtOnce; done: there are no more. The
// engine calls it.
func (w *Walk) Part(fn func(*thread.Thread)) (n int, done bool) {
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
func (q *snapshots) threads(first func(View), fn func(View, *thread.Thread)) error {
	var w *Walk
	for done := false; !done; {
		err := q.ask(func(v View) {
			if w == nil {
				w = NewWalk(v.Core())
				first(v)
			}
			n := 0
			n, done = w.Part(func(t *thread.Thread) { fn(v, t) })
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
