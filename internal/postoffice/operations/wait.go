package operations

import (
	"time"

	"zmailer/internal/postoffice"
	"zmailer/internal/workspec"
)

// Hold has the open recipients of transport/name wait until a time, or if that is zero,
// until they are released. Those that are held already are held anew.
func Hold(q Request, name string, until time.Time) (Result, error) {
	return q.say(name, "hold", workspec.EventHold, func(*chosen) bool { return true }, workspec.UntilAttr(until)...)
}

// Release ends a hold.
func Release(q Request, name string) (Result, error) {
	return q.say(name, "release", workspec.EventRelease, func(c *chosen) bool { return c.order.Held(q.Now) })
}

// Freeze has the open recipients of transport/name wait for an operator: they do not
// expire. cause is one word, workspec.CausePerson for an operator.
func Freeze(q Request, name, cause string) (Result, error) {
	return q.say(name, "freeze", workspec.EventFrozen, func(c *chosen) bool { return c.order.Freeze == nil },
		workspec.Attr{Key: workspec.KeyCause, Value: cause})
}

// Thaw has frozen recipients tried again: their time begins anew.
func Thaw(q Request, name string) (Result, error) {
	return q.say(name, "thaw", workspec.EventThawed, func(c *chosen) bool { return c.order.Freeze != nil })
}

// say writes an event about the open recipients that fits accepts; no tag changes.
func (q *Request) say(name, verb, event string, fits func(*chosen) bool, more ...workspec.Attr) (Result, error) {
	return q.apply(name, verb, fits, func(_ *workspec.Spec, list []chosen) decision {
		return decision{event: q.event(event, list, more...), tag: workspec.TagLocked}
	})
}

// apply makes a decision about the open recipients that fits accepts.
func (q *Request) apply(name, verb string, fits func(*chosen) bool, decide func(*workspec.Spec, []chosen) decision) (Result, error) {
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
		return q.decide(f, spec, decide(spec, list), list)
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
