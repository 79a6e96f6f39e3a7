package store

import (
	"cmp"
	"errors"
	"time"

	"zmailer/internal/postoffice/operations"
	"zmailer/internal/stage/scheduler/builtin"
	"zmailer/internal/stage/scheduler/conf"
	"zmailer/internal/stage/scheduler/events"
	"zmailer/internal/workspec"
)

// holds finds the recipients on channel hold whose conditions hold.
type holds struct {
	*Env
	asked asked
}

// holds calls fn for each open recipient that waits for a condition and for nothing else.
func (s *holds) holds(f *work, now time.Time, fn func(r *workspec.Recipient, settings *conf.Settings)) {
	f.recipients(func(_ *workspec.Group, r *workspec.Recipient) {
		if r.Tag != workspec.TagToDo || r.Channel != builtin.Hold || f.orders.Waits(r, now) {
			return
		}
		if settings, unserved := s.Unserved(r); unserved {
			fn(r, settings)
		}
	})
}

// holding reports whether the condition of a recipient on channel hold holds, and if not,
// when to check again. The first check is one interval after the specification was written,
// so that a route that leads back to channel hold does not loop without a pause.
func (s *holds) holding(f *work, r *workspec.Recipient, settings *conf.Settings, now time.Time) (holds bool, next time.Time, err error) {
	c, err := builtin.ParseCondition(r.Host)
	if err != nil {
		return false, time.Time{}, err
	}
	every := min(cmp.Or(settings.Interval, time.Minute), answerHolds)
	at := f.Info.CTime.Add(every)
	switch {
	case !c.At.IsZero():
		at = later(at, c.At)
	case c.Ask == nil:
		at = later(at, f.begun(r, now).Add(c.Age))
	}
	if at.After(now) {
		return false, at, nil
	}
	if c.Ask == nil {
		return true, now, nil
	}
	holds, next = s.asked.ask(r.Host, &c, s.Resolver, every, now)
	return holds, next, nil
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// letGo has the recipients routed again whose condition holds (M11). It returns their number
// and when to check again; zero: never.
func (s *holds) letGo(f *work, now time.Time) (gone int, next time.Time, err error) {
	due := map[int64]bool{}
	s.holds(f, now, func(r *workspec.Recipient, settings *conf.Settings) {
		holds, at, err := s.holding(f, r, settings, now)
		switch {
		case err != nil: // reported when it was loaded
		case holds:
			due[r.Offset] = true
		default:
			next = Earliest(next, at)
		}
	})
	if len(due) == 0 {
		return 0, next, nil
	}
	res, err := operations.Reroute(operations.Request{PostOffice: s.PostOffice, ID: f.id, Now: now, Who: "scheduler", Silent: true, Submit: s.submitPrepared,
		Reason: "the condition on channel hold holds",
		Match:  func(_ *workspec.Group, r *workspec.Recipient) bool { return due[r.Offset] }}, f.Name)
	switch {
	case errors.Is(err, operations.ErrNothing), errors.Is(err, operations.ErrMoved):
		return 0, next, nil
	case err != nil:
		return 0, next, err
	}
	for _, a := range res.Left {
		s.Log.Error("not-rerouted", "id", f.id, "name", f.Name, "rcpt", a, "reason", "the address is a file or program of an alias; it waits until it expires")
	}
	for _, a := range res.Changed {
		s.emit(events.Rerouted, "id", f.id, "name", f.Name, "rcpt", a, "channel", builtin.Hold, "copy", res.To)
	}
	return len(res.Changed), next, f.read()
}

// nextHold returns when letGo has something to do: now, if a condition holds.
func (s *holds) nextHold(f *work, now time.Time) (next time.Time) {
	s.holds(f, now, func(r *workspec.Recipient, settings *conf.Settings) {
		if _, at, err := s.holding(f, r, settings, now); err == nil {
			next = Earliest(next, at)
		}
	})
	return next
}
