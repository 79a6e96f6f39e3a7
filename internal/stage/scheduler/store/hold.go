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

// holds calls fn for each open recipient that waits for a condition which nothing else
// has wait, too.
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

// holding tells of a recipient on channel hold whether its condition holds, and if not,
// when to look again. A look comes one interval after the specification was written at
// the earliest: a way that leads back to hold is not taken in a circle without a pause.
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

// letGo has the recipients routed again whose condition holds (M11), and tells how many
// they are and when to look again; zero: never.
func (s *holds) letGo(f *work, now time.Time) (gone int, next time.Time, err error) {
	due := map[int64]bool{}
	s.holds(f, now, func(r *workspec.Recipient, settings *conf.Settings) {
		holds, at, err := s.holding(f, r, settings, now)
		switch {
		case err != nil: // told when it was read
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
		s.Log.Error("not-rerouted", "id", f.id, "name", f.Name, "rcpt", a, "reason", "its address is a file or program behind an alias; it waits until it expires")
	}
	for _, a := range res.Changed {
		s.emit(events.Rerouted, "id", f.id, "name", f.Name, "rcpt", a, "channel", builtin.Hold, "copy", res.To)
	}
	return len(res.Changed), next, f.read()
}

// nextHold is when letGo has something to do: now, if a condition holds.
func (s *holds) nextHold(f *work, now time.Time) (next time.Time) {
	s.holds(f, now, func(r *workspec.Recipient, settings *conf.Settings) {
		if _, at, err := s.holding(f, r, settings, now); err == nil {
			next = Earliest(next, at)
		}
	})
	return next
}
