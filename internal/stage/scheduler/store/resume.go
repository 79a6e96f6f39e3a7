package store

import (
	"time"

	"zmailer/internal/postoffice/operations"
	"zmailer/internal/workspec"
)

// resume ends what a crash interrupted between a decision and what follows it.
func (s *reporter) resume(f *work) error {
	if len(operations.Pending(f.spec)) > 0 {
		if err := f.underLock(func() error { return s.resumeReroutes(f) }); err != nil {
			return err
		}
	}
	return s.resumeReports(f)
}

// resumeReroutes submits the copies of rerouted recipients that their event names, and
// marks them. The caller holds the specification's flock.
func (s *reporter) resumeReroutes(f *work) error {
	list, err := operations.Resume(f.Spec, f.spec, s.submitPrepared)
	for _, r := range list {
		s.Log.Warn("recovered", "id", f.id, "name", f.Name, "action", "copy", "file", r.File, "copy", r.To, "recipients", len(r.Recipients))
	}
	if err != nil || len(list) == 0 {
		return err
	}
	return f.read()
}

// nextWake is when the first hold that is under way ends. woken: one has ended, and its
// recipient was not tried since.
func (f *work) nextWake(now time.Time) (next time.Time, woken bool) {
	if f.orders == nil {
		return time.Time{}, false
	}
	last := lastDeferrals(f.spec)
	f.recipients(func(_ *workspec.Group, r *workspec.Recipient) {
		o := f.orders.Of(r.Offset)
		if r.Tag != workspec.TagToDo || o.Hold == nil || o.Freeze != nil || o.Until.IsZero() {
			return
		}
		if o.Held(now) {
			next = Earliest(next, o.Until)
		} else if e := last[r.Offset]; e == nil || e.Time.Before(o.Until) {
			woken = true
		}
	})
	return next, woken
}
