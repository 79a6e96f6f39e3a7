package store

import (
	"time"

	"zmailer/internal/workspec"
)

// clockSlack is how far a time that was written down may be ahead of the clock before
// it says that the clock was set back since.
const clockSlack = 10 * time.Second

// nextOf is when a recipient is tried again whose last deferral is e. It never waits
// longer than was decided then: a time that is further ahead was written before the
// clock was set back.
func nextOf(e *workspec.Event, now time.Time) time.Time {
	next := time.UnixMilli(attrInt(e, "next"))
	if wait := max(next.Sub(e.Time), 0); next.Sub(now) > wait {
		return now.Add(wait)
	}
	return next
}

// gathered is when an interval ends that began at a time in a file. One that has not
// begun yet was written before the clock was set back, and is over.
func gathered(first time.Time, interval time.Duration, now time.Time) time.Time {
	if first.After(now.Add(clockSlack)) {
		return now
	}
	return first.Add(interval)
}

// Since is the time from one moment to a later one, as people are told it: never
// negative, which it would be when the clock was set back.
func Since(from, to time.Time) time.Duration { return max(to.Sub(from), 0) }

// Cut bounds what an agent's chatter may put into one line of the log.
func Cut(s string) string {
	if len(s) > 500 {
		return s[:500] + "..."
	}
	return s
}

// Earliest is the earlier of two times of which zero means never.
func Earliest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
