package store

import (
	"time"

	"zmailer/internal/workspec"
)

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
