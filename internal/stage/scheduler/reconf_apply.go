package scheduler

import (
	"reflect"
	"slices"
	"time"

	"zmailer/internal/stage/scheduler/conf"
	"zmailer/internal/stage/scheduler/store"
	"zmailer/internal/stage/scheduler/thread"
)

// reconfigure has a new configuration take effect. Deliveries under way go on; an agent
// that the new one would have started in another way ends when it has no more of them.
func (e *engine) reconfigure(next *conf.File, why string) {
	if e.stopping {
		return
	}
	old := e.conf.Conf.Current()
	e.conf.Conf.Replace(next)
	var rings []*thread.Ring
	e.core.Rings(func(r *thread.Ring) { rings = append(rings, r) })
	moved, ended := 0, 0
	for _, r := range rings {
		moved += e.moveThreads(r)
	}
	for _, r := range rings {
		ended += e.resettle(r)
	}
	for m := range e.unserved {
		e.reload(m, nil)
	}
	if old.ReportInterval != next.ReportInterval {
		e.core.Rings(e.lookAtReports)
	}
	e.query.follow(next.MailQSock)
	for _, where := range next.NoEffect {
		e.log.Warn("setting-without-effect", "setting", where)
	}
	e.log.Info("conf-read", "file", next.Name, "why", why, "clauses", next.Clauses(), "threads", moved, "agents", ended)
}

// moveThreads puts the threads of a ring where they belong now, and tells how many have
// gone elsewhere.
func (e *engine) moveThreads(r *thread.Ring) (moved int) {
	c, _ := r.Serve.(*crew)
	if c == nil {
		return 0
	}
	next := e.conf.Conf.Current()
	var list, left []*thread.Thread
	r.Threads(func(t *thread.Thread) { list = append(list, t) })
	// A ring without threads goes by whom it was made for.
	settings := next.Match(c.channel, c.host)
	if settings != nil && settings.RingKey(c.channel, c.host) != r.Key {
		settings = nil
	}
	for _, t := range list {
		s := next.Match(t.Channel(), t.Host)
		if s == nil {
			left = append(left, t) // nothing serves it any more, see unserve
			continue
		}
		if s.RingKey(t.Channel(), t.Host) == r.Key {
			settings = s
			continue
		}
		to := e.ring(t.Channel(), t.Host)
		e.core.Move(t, to, e.now)
		if !slices.Equal(s.ReportTimes, c.settings.ReportTimes) {
			e.reportsOf(t)
		}
		moved++
	}
	c.next = settings
	if settings != nil {
		// The ring stays, for others.
		for _, t := range left {
			e.reloadThread(t)
		}
	}
	return moved
}

// resettle gives a ring's crew its new settings and tells how many agents are to end.
func (e *engine) resettle(r *thread.Ring) (ended int) {
	c, _ := r.Serve.(*crew)
	if c == nil {
		return 0
	}
	was, s := c.settings, c.next
	c.next, c.retired = nil, s == nil
	c.told, c.failures, c.notBefore = false, 0, time.Time{}
	if s != nil {
		c.settings = s
		e.follows(r, s.Policy())
		if !slices.Equal(s.ReportTimes, was.ReportTimes) {
			e.lookAtReports(r)
		}
	}
	if s == nil || !s.SameAgents(was) {
		for _, a := range c.agents {
			if !a.closing {
				a.stop(e)
				ended++
			}
		}
	}
	for a := range e.agents {
		if a.crew == c && !a.idle.IsZero() {
			e.wake(a.idle.Add(c.settings.IdleMax))
		}
	}
	e.core.Touch(r)
	return ended
}

// follows has the threads of a ring wait, take turns and get too old by another policy.
func (e *engine) follows(r *thread.Ring, p thread.Policy) {
	if reflect.DeepEqual(r.Policy, p) {
		return
	}
	e.core.Follow(r, p, e.now)
}

// reloadThread reads the messages of a thread again.
func (e *engine) reloadThread(t *thread.Thread) {
	seen := map[*thread.Message]bool{}
	t.Vertices(0, func(v *thread.Vertex) bool {
		if v.Waiting() && e.busy[v.Message] == nil {
			seen[v.Message] = true
		}
		return true
	})
	for m := range seen {
		e.reload(m, nil)
	}
}

// goesBy takes note of what a message's specification was read by.
func (e *engine) goesBy(m *thread.Message, l *store.Loaded) {
	if l.Unserved {
		e.unserved[m] = true
	} else {
		delete(e.unserved, m)
	}
	if l.Conf != e.conf.Conf.Current() {
		// The configuration has changed while it was read.
		e.reload(m, nil)
	}
}

// unserve reads messages again that came to a ring which is no more, as when an attempt
// ended that was begun before.
func (e *engine) unserve(r *thread.Ring, c *crew) {
	if len(c.agents) == 0 && !c.starting && e.core.Remove(r) {
		return
	}
	if c.notBefore.After(e.now) {
		e.wake(c.notBefore)
		return
	}
	c.notBefore = e.now.Add(time.Second)
	r.Threads(func(t *thread.Thread) { e.reloadThread(t) })
}

// lookAtReports has the messages of a ring looked at for reports that are due by other
// times now.
func (e *engine) lookAtReports(r *thread.Ring) {
	r.Threads(func(t *thread.Thread) { e.reportsOf(t) })
}

// reportsOf has the messages of a thread looked at, one after the other so that the disk
// is not asked for all of them at once.
func (e *engine) reportsOf(t *thread.Thread) {
	const pause = time.Millisecond
	at := e.now
	t.Vertices(0, func(v *thread.Vertex) bool {
		at = at.Add(pause)
		if due := e.core.Reminder(v.Message); due.IsZero() || due.After(at) {
			e.core.Remind(v.Message, at)
		}
		return true
	})
}
