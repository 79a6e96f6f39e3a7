package agents

import (
	"zmailer/internal/postoffice"
	"zmailer/internal/stage/scheduler/thread"
)

// S7: an agent may fall silent, write nonsense or not read. Its process is ended then, and
// its jobs are looked up in their files as after any other end.

const (
	// loggedJunk is how many meaningless lines in a row of one agent are logged.
	loggedJunk = 20
	// maxJunk is how many end it.
	maxJunk = 10_000
)

// meaningless counts a line that answers nothing, and reports whether it is to be logged.
func (a *Agent) meaningless() bool {
	a.junk++
	switch {
	case a.junk == loggedJunk:
		a.pool.log.Warn("agent-babbles", "pid", a.pid, "lines", a.junk, "reason", "more is not logged until it answers something")
	case a.junk == maxJunk:
		a.pool.log.Warn("agent-babbles", "pid", a.pid, "lines", a.junk, "reason", "it is ended", "deliveries", len(a.jobs.list))
		a.dismiss()
	}
	return a.junk < loggedJunk
}

// Mute deals with an agent that lives and whose output has ended or cannot be read. What
// it has under way may come to an end; the tags show it.
func (a *Agent) Mute(reason error) {
	if a.ended {
		return
	}
	a.pool.log.Warn("agent-deaf", "pid", a.pid, "reason", reason, "deliveries", len(a.jobs.list))
	if len(a.jobs.list) == 0 || a.pool.stopping {
		a.dismiss()
		return
	}
	a.hopeless = true
	a.close()
}

// dismiss ends an agent whatever it has under way.
func (a *Agent) dismiss() {
	a.hopeless = true
	a.killNow()
}

// CheckReading ends agents that were given jobs and have read nothing of them.
func (p *Pool) CheckReading() {
	for _, a := range p.agents {
		if !a.closedAt.IsZero() || a.hopeless || len(a.jobs.list) == 0 {
			continue
		}
		given, oldest := 0, p.now
		for i := range a.jobs.list {
			if j := &a.jobs.list[i]; j.Vertex != nil {
				given += j.bytes
				if j.given.Before(oldest) {
					oldest = j.given
				}
			}
		}
		if given == 0 || p.now.Sub(oldest) < p.limits.Deaf || a.proc.Unread() < given {
			continue
		}
		p.log.Warn("agent-deaf", "pid", a.pid, "reason", "it has not read what it was given", "deliveries", len(a.jobs.list))
		a.dismiss()
	}
}

func idOf(m *thread.Message) postoffice.SpoolID {
	return postoffice.SpoolID{Ino: m.Inode(), MTime: m.Stamp}
}
