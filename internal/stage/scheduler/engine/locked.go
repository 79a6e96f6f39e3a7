package engine

import (
	"time"

	"zmailer/internal/stage/scheduler/thread"
)

// placement keeps the recipients in the threads in line with the specifications.
type placement struct {
	*engine
	locked     map[*thread.Message]bool // with recipients that another process has locked
	unserved   map[*thread.Message]bool // with recipients that nothing serves
	lockedAt   time.Time                // when the locked ones are looked at
	lockedWait time.Duration            // how long that was put off
}

// lockedAfter is how long after a specification was read whose recipients the agent of
// a scheduler that died holds, it is read again: that agent ends when its deliveries do,
// and nobody tells us. The wait doubles until the looks at transport/ come as often.
const lockedAfter = time.Second

// hold has a message looked at again of which a process that is not ours has locked
// recipients (M18).
func (e *placement) hold(m *thread.Message) {
	e.locked[m] = true
	if e.lockedAt.IsZero() && e.lockedWait < e.conf.Look {
		e.lockedAt = e.now.Add(e.lockedWait)
	}
}

// lookAtLocked reads what was locked, when its time has come.
func (e *placement) lookAtLocked() {
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
func (e *placement) reloadLocked() {
	if len(e.locked) == 0 {
		e.lockedWait = e.conf.locked
	}
	for m := range e.locked {
		if e.changes.busy[m] != nil {
			e.hold(m)
			continue
		}
		e.reload(m, nil)
	}
}
