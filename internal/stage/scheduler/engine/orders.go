package engine

import (
	"slices"

	"zmailer/internal/stage/scheduler/store"
	"zmailer/internal/stage/scheduler/thread"
)

// obey has recipients tried now for which somebody wants that: they leave the vertices
// that wait, and what makes their hosts wait is forgotten. The caller places them anew.
func (e *placement) obey(m *thread.Message, l *store.Loaded) {
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
func (e *ends) takeBack(m *thread.Message, v *thread.Vertex, rec *store.Recorded) (left bool) {
	waiting := int32(len(rec.Taken) - len(rec.Ended))
	left = e.core.Keep(v, func(r *thread.Recipient) bool { return !rec.Taken[r.Offset()] })
	m.Open += waiting
	m.Owes = true
	e.core.Remind(m, e.now)
	return left
}
