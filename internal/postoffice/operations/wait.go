package operations

import (
	"time"

	"zmailer/internal/postoffice"
	"zmailer/internal/workspec"
)

// Hold has the open recipients of transport/name wait until a time, or if that is zero,
// until they are released. Those that are held already are held anew.
func Hold(q Request, name string, until time.Time) (Result, error) {
	return q.say(name, "hold", func(c *chosen) bool { return true }, func(list []chosen) workspec.Event {
		return q.event(workspec.EventHold, list, workspec.UntilAttr(until)...)
	})
}

// Release ends a hold.
func Release(q Request, name string) (Result, error) {
	return q.say(name, "release", func(c *chosen) bool { return c.order.Held(q.Now) }, func(list []chosen) workspec.Event {
		return q.event(workspec.EventRelease, list)
	})
}

// Freeze has the open recipients of transport/name wait for an operator: they do not
// expire. cause is one word, workspec.CausePerson for an operator.
func Freeze(q Request, name, cause string) (Result, error) {
	return q.say(name, "freeze", func(c *chosen) bool { return c.order.Freeze == nil }, func(list []chosen) workspec.Event {
		return q.event(workspec.EventFrozen, list, workspec.Attr{Key: workspec.KeyCause, Value: cause})
	})
}

// Thaw has frozen recipients tried again: their time begins anew.
func Thaw(q Request, name string) (Result, error) {
	return q.say(name, "thaw", func(c *chosen) bool { return c.order.Freeze != nil }, func(list []chosen) workspec.Event {
		return q.event(workspec.EventThawed, list)
	})
}

// say writes an order that changes no tag.
func (q *Request) say(name, verb string, fits func(*chosen) bool, event func([]chosen) workspec.Event) (Result, error) {
	q.Failed = false
	res := Result{Name: name}
	err := q.locked(name, func(f *postoffice.Spec, spec *workspec.Spec) error {
		list, err := q.choose(spec, fits)
		if err != nil {
			return err
		}
		if len(list) == 0 {
			return ErrNothing
		}
		res.fill(list)
		return q.decide(f, spec, decision{event: event(list), tag: workspec.TagLocked}, list)
	})
	return res, q.finish(res, verb, err)
}

// Retry has recipients tried now that wait for their next attempt. Held and frozen ones
// are left, and so are those that an agent has. With Failed, recipients that have failed
// are opened again, and their time begins anew.
func Retry(q Request, name string) (Result, error) {
	res := Result{Name: name}
	err := q.locked(name, func(f *postoffice.Spec, spec *workspec.Spec) error {
		reported := reported(spec)
		list, err := q.choose(spec, func(c *chosen) bool {
			if c.failed {
				return q.Told || !reported[c.rcpt.Offset]
			}
			return !c.order.Held(q.Now) && c.order.Freeze == nil
		})
		if err != nil {
			return err
		}
		var open, failed []chosen
		for _, c := range list {
			switch {
			case c.busy:
				res.Busy = append(res.Busy, c.rcpt.Address)
			case c.failed:
				failed = append(failed, c)
			default:
				open = append(open, c)
			}
		}
		if len(open)+len(failed) == 0 {
			return ErrNothing
		}
		res.fill(open)
		res.fill(failed)
		if len(failed) > 0 {
			d := decision{event: q.event(workspec.EventRetry, failed, workspec.ReopenAttr()), tag: workspec.TagToDo}
			if err := q.decide(f, spec, d, failed); err != nil {
				return err
			}
		}
		if len(open) == 0 {
			return nil
		}
		return q.decide(f, spec, decision{event: q.event(workspec.EventRetry, open), tag: workspec.TagLocked}, open)
	})
	return res, q.finish(res, "retry", err)
}

// reported returns the recipients whose failure a report contains, or is about to contain.
func reported(spec *workspec.Spec) map[int64]bool {
	told, at := map[int64]bool{}, map[int64]int64{}
	for i := range spec.Diagnostics {
		d := &spec.Diagnostics[i]
		if d.Failed() {
			told[d.Of], at[d.Of] = d.Reported, d.LineOffset
		}
	}
	for i := range spec.History {
		e := &spec.History[i]
		if e.Event != workspec.EventReport || e.Get("kind") != "failed" {
			continue
		}
		for _, off := range e.Recipients() {
			told[off] = told[off] || e.LineOffset > at[off]
		}
	}
	return told
}
