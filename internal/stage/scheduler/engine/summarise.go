package engine

import (
	"zmailer/internal/stage/scheduler/thread"
)

// summarise has the history of a message summarised before the parked vertex v waits again,
// and reports whether it will be. The file is replaced for that, so no agent may have the
// message or be given it: all that waits is parked until then.
func (e *ends) summarise(m *thread.Message, v *thread.Vertex) bool {
	if w := e.changes.busy[m]; w != nil && len(w.list) > 0 || e.stopping {
		return false // what comes before may have something given to an agent
	}
	if e.agents.InDoubt(m) {
		return false // an agent may lock a recipient in the old file, and mark it there
	}
	running := false
	var parked []*thread.Vertex
	m.Vertices(func(v *thread.Vertex) {
		running = running || v.Running()
		if v.Waiting() {
			parked = append(parked, v)
		}
	})
	if running {
		return false
	}
	for _, v := range parked {
		e.core.Park(v, e.now)
	}
	e.changes.do(m, op{
		run: func() error { return e.spool.Summarise(m.Name()) },
		then: func() {
			for _, v := range append(parked, v) {
				e.core.Wait(v, e.now)
			}
		},
	})
	return true
}
