package engine

import (
	"zmailer/internal/stage/scheduler/store"
	"zmailer/internal/stage/scheduler/thread"
)

// superseder takes messages out of the queue that later ones take the place of.
type superseder struct {
	*base
	changes   *changes
	intake    *intake
	placement *placement

	superseding map[*thread.Message]*store.Superseding
}

// isSuperseded reports whether a message that was read just now is superseded by one that was
// read before: it is read again when that is done, so that no agent is given it first.
func (e *superseder) isSuperseded(name string, l *store.Loaded) bool {
	if l.Judged || e.stopping {
		return false
	}
	var by []*store.Superseding
	for _, o := range e.superseding {
		if o.Names(l.Ident, l.ID.MTime) {
			by = append(by, o)
		}
	}
	if len(by) == 0 {
		return false
	}
	e.intake.loading[name] = true
	e.pool.do(func() {
		again, err := l, error(nil)
		for _, o := range by {
			if _, err = e.spool.Supersede(l.Name, o); err != nil {
				break
			}
		}
		if err == nil {
			again, err = e.spool.Load(l.Name)
		}
		if again != nil {
			again.Judged = true
		}
		e.post(func() { e.intake.loaded(name, again, err) })
	})
	return true
}

// supersedes has a message that was read just now take the place of those it names.
func (e *superseder) supersedes(m *thread.Message, l *store.Loaded) {
	if l.Obsoletes == nil {
		return
	}
	if e.superseding == nil {
		e.superseding = map[*thread.Message]*store.Superseding{}
	}
	e.superseding[m] = l.Obsoletes
	var names []string
	for i := range e.messages.parts {
		e.messages.parts[i].each(func(old *thread.Message) {
			if old != m && old.SameSender(m) && old.Stamp < m.Stamp {
				names = append(names, old.Name())
			}
		})
	}
	if len(names) == 0 {
		return
	}
	e.pool.do(func() {
		found := e.spool.FindSuperseded(names, l.Obsoletes)
		e.post(func() {
			for _, number := range found {
				if old := e.messages.get(number); old != nil && !e.stopping {
					e.supersede(old, l.Obsoletes)
				}
			}
		})
	})
}

// supersede takes a message out that another one supersedes.
func (e *superseder) supersede(old *thread.Message, o *store.Superseding) {
	var l *store.Loaded
	e.changes.do(old, op{
		run: func() error {
			changed, err := e.spool.Supersede(old.Name(), o)
			if err != nil || !changed {
				return err
			}
			l, err = e.spool.Reload(old.Name())
			e.spool.LogOperations(old.Name())
			return err
		},
		then: func() {
			if l != nil {
				e.placement.reloaded(old, l, nil)
			}
		},
	})
}
