package scheduler

import (
	"time"

	"zmailer/internal/stage/scheduler/thread"
)

// lockedAfter is how long after a specification was read whose recipients the agent of
// a scheduler that died holds, it is read again: that agent ends when its deliveries do,
// and nobody tells us. The wait doubles until the looks at transport/ come as often.
const lockedAfter = time.Second

// hold has a message looked at again of which a process that is not ours has locked
// recipients (M18).
func (e *engine) hold(m *thread.Message) {
	e.locked[m] = true
	if e.lockedAt.IsZero() && e.lockedWait < e.conf.Look {
		e.lockedAt = e.now.Add(e.lockedWait)
	}
}

// lookAtLocked reads what was locked, when its time has come.
func (e *engine) lookAtLocked() {
	if e.lockedAt.IsZero() || e.now.Before(e.lockedAt) {
		return
	}
	e.lockedAt = time.Time{}
	if e.stopping {
		return
	}
	e.lockedWait *= 2
	e.reloadLocked()
}

// reloadLocked reads what was locked; what is so still is held again.
func (e *engine) reloadLocked() {
	if len(e.locked) == 0 {
		e.lockedWait = e.conf.locked
	}
	for m := range e.locked {
		if e.busy[m] != nil {
			e.hold(m)
			continue
		}
		e.reload(m, nil)
	}
}
