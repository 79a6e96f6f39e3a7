package workspec

import (
	"slices"
	"time"
)

// span is a time that does not make a recipient older.
type span struct{ from, to time.Time }

// length returns how much time spans cover together; where they overlap it counts once.
func length(spans []span) (sum time.Duration) {
	slices.SortFunc(spans, func(a, b span) int { return a.from.Compare(b.from) })
	var end time.Time
	for _, s := range spans {
		if s.from.Before(end) {
			s.from = end
		}
		if s.to.After(s.from) {
			sum += s.to.Sub(s.from)
			end = s.to
		}
	}
	return sum
}

// beside returns how much time spans cover that others do not.
func beside(spans, others []span) time.Duration {
	return length(slices.Concat(spans, others)) - length(slices.Clone(others))
}
