package scheduler

import (
	"errors"
	"slices"
	"strings"

	"zmailer/internal/postoffice"
	"zmailer/internal/postoffice/operations"
	"zmailer/internal/stage/scheduler/thread"
	"zmailer/internal/workspec"
)

// A message may make earlier ones of its sender void: its specification names them by
// their Message-IDs, x lines (M45). What of them is still queued is taken out as zmctl
// remove does it, reported to nobody, and can be put back with zmctl undo.

// origin is who submitted a message: its sender and the uid that stands behind it.
type origin struct{ sender, uid string }

// originOf is false where nobody stands behind the sender: the message came from
// outside, or all that it is for are lists with owners.
func originOf(spec *workspec.Spec) (o origin, ok bool) {
	if len(spec.ErrorTo) == 0 {
		return origin{}, false
	}
	o.sender = spec.ErrorTo[0]
	for i := range spec.Groups {
		s := &spec.Groups[i].Sender
		if s.Address == o.sender && s.Channel == "local" && s.Privilege != "" && s.Privilege != privilegeNobody {
			o.uid = s.Privilege
			return o, true
		}
	}
	return origin{}, false
}

// privilegeNobody is the uid of senders that nobody stands behind.
const privilegeNobody = "65534"

// obsoleter is a message that makes others void.
type obsoleter struct {
	id   postoffice.SpoolID
	ids  []string // Message-IDs
	from origin
}

// obsoletes is what a specification makes void; nil: nothing.
func (f *opened) obsoletes() *obsoleter {
	if len(f.spec.Obsoletes) == 0 {
		return nil
	}
	from, ok := originOf(f.spec)
	if !ok {
		return nil
	}
	return &obsoleter{f.id, f.spec.Obsoletes, from}
}

// names tells whether a message is one of those named, and older.
func (o *obsoleter) names(ident string, stamp int64) bool {
	return stamp < o.id.MTime && slices.Contains(o.ids, ident)
}

// obsoleted finds those specifications that a message makes void, by their numbers.
func (s *Spool) obsoleted(names []string, o *obsoleter) (found []uint64) {
	for _, name := range names {
		f, err := s.openToLook(name)
		if err != nil {
			continue // it has ended, or is told when it is next used
		}
		if number, ok := f.spec.Number(); ok && !f.noMessage && o.names(f.spec.Ident, f.id.MTime) {
			found = append(found, number)
		}
	}
	return found
}

// obsolete takes the open recipients out of a message that another one makes void, if
// both are of one sender and one uid. changed: its specification is to be read again.
func (s *Spool) obsolete(name string, o *obsoleter) (changed bool, err error) {
	f, err := s.openToLook(name)
	if err != nil {
		return false, err
	}
	if f.noMessage || !f.spec.Complete || !o.names(f.spec.Ident, f.id.MTime) {
		return false, nil
	}
	refused := func(why string) (bool, error) {
		s.Log.Warn("not-obsoleted", "id", f.id, "name", f.Name, "ident", f.spec.Ident, "by", o.id, "reason", why)
		return false, nil
	}
	switch from, ok := originOf(f.spec); {
	case !ok:
		return refused("nobody of this machine stands behind its sender")
	case from.uid != o.from.uid:
		return refused("it was submitted by uid " + from.uid + ", the other one by uid " + o.from.uid)
	case !strings.EqualFold(from.sender, o.from.sender):
		return refused("its sender is " + from.sender + ", that of the other one " + o.from.sender)
	}
	if slices.ContainsFunc(f.spec.History, func(e workspec.Event) bool { return e.Event == workspec.EventRestored }) {
		return refused("a person has put it back")
	}
	// Crash: before the order's line nothing has happened, and it is done again when the
	// other message is read; with it the message is removed.
	res, err := operations.Remove(operations.Request{PostOffice: s.PostOffice, ID: f.id, Now: s.Now(), Who: "scheduler", Silent: true,
		Reason: "obsoleted by " + o.id.String()}, name)
	switch {
	case errors.Is(err, operations.ErrNothing), errors.Is(err, operations.ErrMoved):
		return false, nil
	case err != nil:
		return false, err
	}
	for _, a := range res.Changed {
		s.Log.Info("obsoleted", "id", f.id, "name", f.Name, "rcpt", a, "by", o.id)
	}
	for _, a := range res.Busy {
		s.Log.Info("obsoleted", "id", f.id, "name", f.Name, "rcpt", a, "by", o.id, "reason", "an agent delivers it; if that fails")
	}
	return true, nil
}

// isVoid tells of a message that was read just now that one which was read before takes
// its place: it is read again when that is done, so that no agent is given it first.
func (e *engine) isVoid(name string, l *Loaded) bool {
	if l.judged || e.stopping {
		return false
	}
	var by []*obsoleter
	for _, o := range e.obsoleters {
		if o.names(l.Ident, l.ID.MTime) {
			by = append(by, o)
		}
	}
	if len(by) == 0 {
		return false
	}
	e.loading[name] = true
	e.pool.do(func() {
		again, err := l, error(nil)
		for _, o := range by {
			if _, err = e.spool.obsolete(l.Name, o); err != nil {
				break
			}
		}
		if err == nil {
			again, err = e.spool.Load(l.Name)
		}
		if again != nil {
			again.judged = true
		}
		e.post(func() { e.loaded(name, again, err) })
	})
	return true
}

// voids has a message that was read just now take the place of those it names.
func (e *engine) voids(m *thread.Message, l *Loaded) {
	if l.Obsoletes == nil {
		return
	}
	if e.obsoleters == nil {
		e.obsoleters = map[*thread.Message]*obsoleter{}
	}
	e.obsoleters[m] = l.Obsoletes
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
		found := e.spool.obsoleted(names, l.Obsoletes)
		e.post(func() {
			for _, number := range found {
				if old := e.messages.get(number); old != nil && !e.stopping {
					e.void(old, l.Obsoletes)
				}
			}
		})
	})
}

// void takes a message out that another one has made void.
func (e *engine) void(old *thread.Message, o *obsoleter) {
	var l *Loaded
	e.do(old, op{
		run: func() error {
			changed, err := e.spool.obsolete(old.Name(), o)
			if err != nil || !changed {
				return err
			}
			l, err = e.spool.Reload(old.Name())
			e.spool.orders(old.Name())
			return err
		},
		then: func() {
			if l != nil {
				e.reloaded(old, l, nil)
			}
		},
	})
}
