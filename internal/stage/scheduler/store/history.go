package store

import (
	"net/mail"
	"strings"
	"time"

	"zmailer/internal/mail/envelope"
	"zmailer/internal/mail/status"
	"zmailer/internal/stage/scheduler/conf"
	"zmailer/internal/stage/scheduler/report"
	"zmailer/internal/workspec"
)

// fold reads the history: for each event that counts, value returns what a recipient of the
// event has after it, from what it had before. The map, by the offsets of recipients, is nil
// without such an event, as it is for most messages.
func fold[T any](spec *workspec.Spec, counts func(e *workspec.Event) bool, value func(e *workspec.Event, before T) T) map[int64]T {
	var m map[int64]T
	for i := range spec.History {
		e := &spec.History[i]
		if !counts(e) {
			continue
		}
		if m == nil {
			m = map[int64]T{}
		}
		for r := range spec.About(e) {
			m[r.Offset] = value(e, m[r.Offset])
		}
	}
	return m
}

func eventTime(e *workspec.Event, _ time.Time) time.Time { return e.Time }

// delaysReported returns when each recipient's delay was last reported.
func delaysReported(spec *workspec.Spec) map[int64]time.Time {
	return fold(spec, func(e *workspec.Event) bool {
		return e.Event == workspec.EventReport && e.Get("kind") == report.Delayed
	}, eventTime)
}

// expiredIn returns the recipients that were given up after their time, or by an operator.
func expiredIn(spec *workspec.Spec) map[int64]bool {
	return fold(spec, func(e *workspec.Event) bool {
		return e.Event == workspec.EventExpired || e.Event == workspec.EventRetry
	},
		func(e *workspec.Event, before bool) bool {
			return e.Event == workspec.EventExpired || before && e.Get("reopen") == ""
		})
}

// firstAttempts returns the times before which no attempt was wanted, as waitForFirst has
// written them.
func firstAttempts(spec *workspec.Spec) map[int64]time.Time {
	return fold(spec, func(e *workspec.Event) bool { return e.Event == workspec.EventDeferred && e.Get("attempt") == "0" },
		func(e *workspec.Event, _ time.Time) time.Time { return time.UnixMilli(attrInt(e, "next")) })
}

// lastDeferrals returns each recipient's last deferral.
func lastDeferrals(spec *workspec.Spec) map[int64]*workspec.Event {
	return fold(spec, func(e *workspec.Event) bool { return e.Event == workspec.EventDeferred },
		func(e, _ *workspec.Event) *workspec.Event { return e })
}

// unservedNow returns the recipients that no clause serves, as the history has it.
func unservedNow(spec *workspec.Spec) map[int64]bool {
	return fold(spec, func(e *workspec.Event) bool {
		return e.Event == workspec.EventUnserved || e.Event == workspec.EventServed
	},
		func(e *workspec.Event, _ bool) bool { return e.Event == workspec.EventUnserved })
}

// unservedSince returns when each recipient that no clause serves was last reported so.
func unservedSince(spec *workspec.Spec) map[int64]time.Time {
	return fold(spec, func(e *workspec.Event) bool { return e.Event == workspec.EventUnserved },
		func(e *workspec.Event, before time.Time) time.Time {
			if e.Time.After(before) {
				return e.Time
			}
			return before
		})
}

// reopened returns the offset of the last line that opened a recipient again.
func reopened(spec *workspec.Spec) map[int64]int64 {
	return fold(spec, workspec.Reopens, func(e *workspec.Event, _ int64) int64 { return e.LineOffset })
}

// unmarkedReports returns the report events whose diagnostics are not all marked: reports
// that a crash interrupted. The report of a delay has no diagnostic and always counts.
func unmarkedReports(spec *workspec.Spec) (list []*workspec.Event) {
	for i := range spec.History {
		e := &spec.History[i]
		if e.Event == workspec.EventReport && (e.Get("kind") == report.Delayed || len(covered(spec, e)) > 0) {
			list = append(list, e)
		}
	}
	return list
}

// covered returns the diagnostics that a report event includes and that are not marked.
func covered(spec *workspec.Spec, e *workspec.Event) (list []*workspec.Diagnostic) {
	offsets := map[int64]bool{}
	for _, off := range e.Recipients() {
		offsets[off] = true
	}
	for i := range spec.Diagnostics {
		d := &spec.Diagnostics[i]
		if !d.Reported && d.LineOffset < e.LineOffset && report.KindOf(d) == e.Get("kind") && offsets[d.Of] {
			list = append(list, d)
		}
	}
	return list
}

// clockSlack is how far a recorded time may be ahead of the clock before it shows that the
// clock was set back.
const clockSlack = 10 * time.Second

// nextOf returns when a recipient with the last deferral e is tried again. The wait is never
// longer than was decided then: a later time was written before the clock was set back.
func nextOf(e *workspec.Event, now time.Time) time.Time {
	next := time.UnixMilli(attrInt(e, "next"))
	if wait := max(next.Sub(e.Time), 0); next.Sub(now) > wait {
		return now.Add(wait)
	}
	return next
}

// gathered returns the end of an interval that began at a time in a file. A begin in the
// future was written before the clock was set back; that interval is over.
func gathered(first time.Time, interval time.Duration, now time.Time) time.Time {
	if first.After(now.Add(clockSlack)) {
		return now
	}
	return first.Add(interval)
}

// Since returns the time between two moments, for display: 0 if the clock was set back.
func Since(from, to time.Time) time.Duration { return max(to.Sub(from), 0) }

// Cut bounds the text of an agent in a line of the log.
func Cut(s string) string {
	if len(s) > 500 {
		return s[:500] + "..."
	}
	return s
}

// Earliest returns the earlier of two times; zero means never.
func Earliest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// longestWait bounds how long after a message's arrival its header may put the first attempt.
const longestWait = 30 * 24 * time.Hour

// waitForFirst records when the first attempt for a recipient may begin, as a deferral
// without an attempt, and returns it; nil: at once.
func (s *loader) waitForFirst(f *work, g *workspec.Group, r *workspec.Recipient, settings *conf.Settings, c *changes) *workspec.Event {
	at := s.notBefore(f, g, settings)
	if !at.After(f.arrival()) {
		return nil
	}
	e := workspec.DeferredEvent(s.Now(), r.Offset, 0, at, status.Code{Class: 4}, "not to be tried before "+at.UTC().Format(time.RFC1123Z))
	c.deferral(e)
	if f.wished == nil {
		f.wished = map[int64]time.Time{}
	}
	f.wished[r.Offset] = at
	return &e
}

// awayOf returns how much of a recipient's time does not count for its age, besides the time
// in removed/: time in holds, before a thaw, and before its first attempt.
func (f *work) awayOf(r *workspec.Recipient, now time.Time) time.Duration {
	if f.orders == nil && f.wished == nil {
		return 0
	}
	away := f.orders.Of(r.Offset).Away(f.arrival(), now, f.removal)
	if at, ok := f.wished[r.Offset]; ok {
		away = max(away, min(at.Sub(f.arrival()), longestWait))
	}
	return away
}

// notBefore returns when the first attempt for a group's recipients may begin, by minage and
// notbefore (Z22); zero: at once. The time until then does not count for their age. A date in
// the header that is invalid, or later than longestWait, is logged and ignored.
func (s *loader) notBefore(f *work, g *workspec.Group, settings *conf.Settings) time.Time {
	at := time.Time{}
	if settings.MinAge > 0 {
		at = f.arrival().Add(settings.MinAge)
	}
	if settings.NotBefore == "" {
		return at
	}
	for _, field := range envelope.Fields(f.header(g)) {
		if !strings.EqualFold(field.Name, settings.NotBefore) {
			continue
		}
		date, err := mail.ParseDate(field.Value())
		switch {
		case err != nil:
			s.Log.Warn("date-ignored", "id", f.id, "name", f.Name, "field", field.Name, "value", Cut(field.Value()), "reason", "not a date")
		case date.Sub(f.arrival()) > longestWait:
			s.Log.Warn("date-ignored", "id", f.id, "name", f.Name, "field", field.Name, "value", Cut(field.Value()),
				"reason", "more than 30 days after the message's arrival")
		case date.After(at) && date.After(f.arrival()):
			at = date
		}
		break
	}
	return at
}
