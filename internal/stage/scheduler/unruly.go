package scheduler

import (
	"time"

	"golang.org/x/sys/unix"
)

// S7: an agent may stop to speak, babble or not listen. Its process is ended then, and
// its deliveries are looked up in their files as after any other end.

const (
	// loggedJunk is how many meaningless lines in a row of one agent are logged.
	loggedJunk = 20
	// maxJunk is how many it may say.
	maxJunk = 10_000
	// deafAfter is how long an agent may leave everything unread that it was given.
	deafAfter = time.Minute
)

// meaningless counts a line that is no answer to anything, and tells whether it is to
// be logged.
func (e *engine) meaningless(a *agent) bool {
	a.junk++
	switch {
	case a.junk == loggedJunk:
		e.log.Warn("agent-babbles", "pid", a.pid, "lines", a.junk, "reason", "more is not logged until it answers something")
	case a.junk == maxJunk:
		e.log.Warn("agent-babbles", "pid", a.pid, "lines", a.junk, "reason", "it is ended", "deliveries", len(a.deliveries))
		e.dismiss(a)
	}
	return a.junk < loggedJunk
}

// speechless deals with an agent that lives and whose output has ended or makes no
// sense. What it has under way may come to an end; the tags tell.
func (e *engine) speechless(a *agent, reason error) {
	if a.ended {
		return
	}
	e.log.Warn("agent-deaf", "pid", a.pid, "reason", reason, "deliveries", len(a.deliveries))
	if len(a.deliveries) == 0 || e.stopping {
		e.dismiss(a)
		return
	}
	a.hopeless = true
	a.close(e)
}

// listening ends agents that were given deliveries and have read nothing of them.
func (e *engine) listening() {
	for a := range e.agents {
		if a.in == nil || a.hopeless || len(a.deliveries) == 0 {
			continue
		}
		given, oldest := 0, e.now
		for i := range a.deliveries {
			if d := &a.deliveries[i]; d.v != nil {
				given += d.bytes
				if d.given.Before(oldest) {
					oldest = d.given
				}
			}
		}
		if given == 0 || e.now.Sub(oldest) < e.conf.deaf || unread(a) < given {
			continue
		}
		e.log.Warn("agent-deaf", "pid", a.pid, "reason", "it has not read what it was given", "deliveries", len(a.deliveries))
		e.dismiss(a)
	}
}

// unread is how many bytes lie in the pipe to an agent.
func unread(a *agent) int {
	raw, err := a.in.SyscallConn()
	if err != nil {
		return 0
	}
	n := 0
	cerr := raw.Control(func(fd uintptr) { n, err = unix.IoctlGetInt(int(fd), unix.TIOCINQ) })
	if cerr != nil || err != nil {
		return 0
	}
	return n
}

// dismiss ends an agent whatever it has under way.
func (e *engine) dismiss(a *agent) {
	a.hopeless = true
	a.kill(e)
	// The next signal is SIGKILL.
	a.closedAt = e.now.Add(killGrace - e.conf.StopTimeout)
	e.wake(e.now.Add(killGrace))
}
