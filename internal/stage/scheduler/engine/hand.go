package engine

import (
	"errors"
	"fmt"
	"time"

	"zmailer/internal/postoffice"
	"zmailer/internal/postoffice/alarm"
	"zmailer/internal/stage/scheduler/events"
	"zmailer/internal/stage/scheduler/store"
	"zmailer/internal/stage/scheduler/thread"
)

// vanish drops a message whose files were taken away under us (K10), and looks whether
// it has left anything.
func (e *ends) vanish(m *thread.Message, err error) {
	name := m.Name()
	e.emit(events.Vanished, "id", idOf(m), "name", name, "open", m.Open, "reason", err,
		"advice", "nothing, if it was meant so. A message that is left in queue/ without a specification is routed again, to all its recipients")
	e.books.enterVanished(m)
	e.forget(m)
	if e.messages.get(m.Number) == nil {
		e.intake.want(name)
	}
}

// touched takes note that a message file's time of writing, by which people name the
// message and its age counts, was changed by hand.
func (e *ends) touched(m *thread.Message, id postoffice.SpoolID) {
	was := idOf(m)
	if id.MTime == m.Stamp || id.Ino != m.Inode() {
		return
	}
	e.log.Warn("touched", "id", id, "name", m.Name(), "was", was,
		"advice", "the message has another spool ID now, and is as old as its file")
	e.spool.Ledger.Moved(id, id.Ino)
	e.core.Restamp(m, id.MTime, e.now)
}

// aloneGrace is how long a specification with open recipients waits for its message:
// files are moved in and out one after the other.
const aloneGrace = time.Minute

// abandon gives up a specification whose message does not come.
func (e *intake) abandon(name string) {
	e.loading[name] = true
	e.pool.do(func() {
		err := e.spool.Abandon(name)
		e.post(func() {
			delete(e.loading, name)
			e.readNote(name)
			if err != nil && !errors.Is(err, postoffice.ErrGone) {
				e.log.Error("disk", "name", name, "reason", err)
				return
			}
			delete(e.refused, name)
		})
	})
}

// noted reads a specification again that a person's command has changed.
func (e *intake) noted(name string) {
	if e.stopping {
		return
	}
	n, _ := postoffice.ParseName(name)
	m := e.messages.get(n.Ino)
	if m == nil {
		if e.refused[name].kind == alarm.Unreported {
			delete(e.refused, name) // what was ordered may have settled it
		}
		e.want(name)
		if e.loading[name] {
			// It may have been read before the change.
			e.notes[name] = true
		} else {
			e.pool.do(func() { e.dropNote(name) })
		}
		return
	}
	if !m.Named(name) {
		// We have moved it since, or it is another file (K10).
		defer e.want(name)
	}
	drop := func() { e.dropNote(name) }
	var l *store.Loaded
	e.changes.do(m, op{
		run: func() (err error) {
			drop() // first: what changes while it is read makes another note
			l, err = e.spool.Reload(m.Name())
			e.spool.LogOperations(m.Name())
			return err
		},
		then: func() {
			e.placement.obey(m, l)
			e.placement.reloaded(m, l, nil)
		},
	})
}

// readNote goes on with a note that came while its specification was read.
func (e *intake) readNote(name string) {
	if !e.notes[name] {
		return
	}
	delete(e.notes, name)
	if n, _ := postoffice.ParseName(name); e.messages.get(n.Ino) != nil {
		e.noted(name)
	} else {
		e.pool.do(func() { e.dropNote(name) })
	}
}

func (e *intake) dropNote(name string) {
	if err := e.po.Queue.DropNote(name); err != nil {
		e.log.Error("disk", "name", name, "reason", err)
	}
}

// elsewhere looks at a specification with the number of a message that is known under
// another name: it was moved by hand, or is another message's (K10).
func (e *intake) elsewhere(m *thread.Message, name string) {
	var l *store.Loaded
	gone, moved, known := false, false, m.Name()
	e.changes.do(m, op{
		run: func() (err error) {
			// Listed, and moved by ourselves to its place since.
			if gone, err = e.po.Queue.IsGone(name); gone || err != nil {
				return err
			}
			l, err = e.spool.Reload(known)
			if !errors.Is(err, postoffice.ErrGone) {
				return err
			}
			l, err = e.spool.Load(name)
			if err == nil && (l.Gone || l.ID.Ino != m.Inode()) {
				err = postoffice.ErrGone
			}
			moved = err == nil
			return err
		},
		then: func() {
			if gone {
				e.refuse(name, postoffice.ErrGone)
				return
			}
			if !moved {
				e.placement.reloaded(m, l, nil)
				e.refuse(name, fmt.Errorf("its inode number is that of %s, which is queued too: %w", known, postoffice.ErrOccupied))
				return
			}
			e.log.Warn("moved", "id", idOf(m), "from", known, "name", l.Name)
			e.placement.reloaded(m, l, nil)
		},
	})
}
