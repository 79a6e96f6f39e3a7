package store

import (
	"strings"
	"time"

	"zmailer/internal/stage/scheduler/builtin"
	"zmailer/internal/stage/scheduler/conf"
	"zmailer/internal/workspec"
)

// Unserved reports whether a recipient has no agent: its channel is hold, or no
// clause with a command matches. settings are those of the clauses that do match.
func (s *Env) Unserved(r *workspec.Recipient) (settings *conf.Settings, unserved bool) {
	settings = s.Conf.Current().Match(r.Channel, r.Host)
	if settings == nil {
		return s.Conf.Current().MatchAny(r.Channel, r.Host), true
	}
	// Only a clause of its own has an agent for hold.
	return settings, r.Channel == builtin.Hold && !strings.HasPrefix(settings.Clause, builtin.Hold)
}

// unservedUntil is when an open recipient that nothing serves is given up (M27), zero if
// never. No attempt can be waited for, so expiry counts as expiry2 does; but from the
// time of the history's line about it, so that a clause that is missing for an hour does not
// end old mail.
func (s *recorder) unservedUntil(f *work, r *workspec.Recipient, settings *conf.Settings, noted map[int64]time.Time) time.Time {
	age := settings.GiveUp()
	if age == 0 {
		return time.Time{}
	}
	since := f.begun(r, s.Now())
	at, ok := noted[r.Offset]
	switch {
	case ok && at.After(since):
		since = at
	case !ok && r.Channel != builtin.Hold: // that is no trouble
		since = s.Now() // the line is about to be written
	}
	return since.Add(age)
}

// nextUnserved is when the first of the recipients that nothing serves is given up, zero
// if none is.
func (s *recorder) nextUnserved(f *work) (next time.Time) {
	noted := unservedSince(f.spec)
	f.recipients(func(_ *workspec.Group, r *workspec.Recipient) {
		if r.Tag != workspec.TagToDo {
			return
		}
		if settings, unserved := s.Unserved(r); unserved && !f.orders.Waits(r, s.Now()) {
			next = Earliest(next, s.unservedUntil(f, r, settings, noted))
		}
	})
	return next
}

// expireUnserved gives up the recipients that nothing served in time, and gives their
// number.
func (s *recorder) expireUnserved(f *work, now time.Time) (int, error) {
	if next := s.nextUnserved(f); next.IsZero() || next.After(now) {
		return 0, nil
	}
	var c changes
	err := f.underLock(func() error {
		noted := unservedSince(f.spec)
		f.recipients(func(g *workspec.Group, r *workspec.Recipient) {
			settings, unserved := s.Unserved(r)
			if r.Tag != workspec.TagToDo || !unserved || f.orders.Waits(r, now) {
				return
			}
			if at := s.unservedUntil(f, r, settings, noted); !at.IsZero() && !at.After(now) {
				s.giveUp(f, g, r, &c, nil, "", now)
			}
		})
		if len(c.lines) == 0 {
			return nil
		}
		c.sync = true
		if err := c.write(f); err != nil {
			return err
		}
		return f.read()
	})
	return len(c.tags), err
}
