package store

import (
	"time"

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
