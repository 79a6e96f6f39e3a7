package scheduler

import (
	"slices"
	"time"

	"zmailer/internal/postoffice/operations"
	"zmailer/internal/stage/scheduler/thread"
	"zmailer/internal/workspec"
)

// resume ends what a crash interrupted between a decision and what follows it.
func (s *Spool) resume(f *opened) error {
	if len(operations.Pending(f.spec)) > 0 {
		if err := f.underLock(func() error { return s.resumeReroutes(f) }); err != nil {
			return err
		}
	}
	return s.resumeReports(f)
}

// resumeReroutes submits the copies of rerouted recipients that their event names, and
// marks them. The caller holds the specification's flock.
func (s *Spool) resumeReroutes(f *opened) error {
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
func (f *opened) nextWake(now time.Time) (next time.Time, woken bool) {
	if f.orders == nil {
		return time.Time{}, false
	}
	last := f.deferrals()
	f.recipients(func(_ *workspec.Group, r *workspec.Recipient) {
		o := f.orders.Of(r.Offset)
		if r.Tag != workspec.TagToDo || o.Hold == nil || o.Freeze != nil || o.Until.IsZero() {
			return
		}
		if o.Held(now) {
			next = earliest(next, o.Until)
		} else if e := last[r.Offset]; e == nil || e.Time.Before(o.Until) {
			woken = true
		}
	})
	return next, woken
}

// obey has recipients tried now for which somebody wants that: they leave the vertices
// that wait, and what makes their hosts wait is forgotten. The caller places them anew.
func (e *engine) obey(m *thread.Message, l *Loaded) {
	hurry := map[int64]bool{}
	for i := range l.Open {
		if w := &l.Open[i]; w.Hurry && !w.Locked {
			hurry[w.Offset] = true
		}
	}
	if len(hurry) == 0 {
		return
	}
	m.Vertices(func(v *thread.Vertex) {
		if !v.Waiting() || !slices.ContainsFunc(v.Recipients(), func(r thread.Recipient) bool { return hurry[r.Offset()] }) {
			return
		}
		e.core.Relent(v.Thread, e.now)
		e.core.Park(v, e.now)
		e.core.Forget(v)
	})
}

// takeBack takes recipients out of a parked vertex about which a person has decided while
// an agent had them. It tells whether others are left.
func (e *engine) takeBack(m *thread.Message, v *thread.Vertex, rec *recorded) (left bool) {
	waiting := int32(len(rec.taken) - len(rec.ended))
	left = e.core.Keep(v, func(r *thread.Recipient) bool { return !rec.taken[r.Offset()] })
	m.Open += waiting
	m.Owes = true
	e.core.Remind(m, e.now)
	return left
}
