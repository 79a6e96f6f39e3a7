package operations

import (
	"errors"
	"fmt"

	"zmailer/internal/postoffice"
	"zmailer/internal/workspec"
)

// Undo puts recipients that were removed back into transport/name, whose message still
// is in the queue.
func Undo(q Request, name string) (Result, error) {
	res := Result{Name: name}
	err := q.locked(name, func(f *postoffice.Spec, spec *workspec.Spec) error {
		return q.reopen(f, spec, &res)
	})
	return res, q.finish(res, "undo", err)
}

// UndoShelved puts a message that is in removed/ back into the queue. Those of its
// recipients are open then that were removed.
func UndoShelved(q Request) (res Result, err error) {
	if err = q.unshelve(&res); err != nil {
		err = fmt.Errorf("undo %s: %w", q.ID, err)
	}
	return res, err
}

func (q Request) unshelve(res *Result) error {
	f, err := q.PostOffice.Removed.OpenSpec(q.ID)
	if errors.Is(err, postoffice.ErrGone) {
		return ErrMoved
	}
	if err != nil {
		return err
	}
	defer f.Close()
	if err := f.Lock(); err != nil {
		return err
	}
	// While the lock was waited for, another undo may have put it back, or its time in
	// removed/ be over.
	moved, err := f.Replaced()
	if errors.Is(err, postoffice.ErrGone) || moved {
		return ErrMoved
	}
	if err != nil {
		return err
	}
	spec, err := read(f)
	if err != nil {
		return err
	}
	if err := q.reopen(f, spec, res); err != nil && !errors.Is(err, errRestored) {
		return err
	}
	// Crash: it is in removed/ with open recipients: still removed, and put back by
	// the next undo.
	res.Name, err = q.PostOffice.Removed.Unshelve(q.ID, spec.Message)
	return err
}

// reopen records that removed recipients are open again.
func (q Request) reopen(f *postoffice.Spec, spec *workspec.Spec, res *Result) error {
	removal := spec.Removal()
	restored := false
	var list []chosen
	for g, r := range spec.All() {
		switch {
		case removal.Removed(r):
			if q.Match != nil && !q.Match(g, r) {
				continue
			}
			c := chosen{group: g, rcpt: r}
			if err := q.look(&c); err != nil {
				return err
			}
			// One that an agent has stays with it, and open if it is not delivered.
			list = append(list, c)
			res.Changed = append(res.Changed, r.Address)
		case removal.Restored(r):
			// By an undo that was broken off.
			restored = true
			res.Changed = append(res.Changed, r.Address)
		}
	}
	switch {
	case len(list) > 0:
	case restored:
		return errRestored
	default:
		return ErrNothing
	}
	return q.decide(f, spec, decision{event: q.removed(workspec.EventRestored, list), tag: workspec.TagToDo}, list)
}
