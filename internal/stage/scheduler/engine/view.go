package engine

import (
	"time"

	"zmailer/internal/stage/scheduler/query"
	"zmailer/internal/stage/scheduler/thread"
)

// view is the engine as the query sees it between two turns.
type view struct{ *engine }

// Now implements query.View.
func (v view) Now() time.Time { return v.now }

// Core implements query.View.
func (v view) Core() *thread.Core { return v.core }

// Message implements query.View.
func (v view) Message(number uint64) *thread.Message { return v.messages.get(number) }

// MessageOfInode implements query.View.
func (v view) MessageOfInode(inode uint64) *thread.Message { return v.messages.get(v.inodes[inode]) }

// Messages implements query.View.
func (v view) Messages(part int, fn func(*thread.Message)) (parts int) {
	if part < tableParts {
		v.messages.parts[part].each(fn)
	}
	return tableParts
}

// Status implements query.View.
func (v view) Status() query.Status {
	s := query.Status{Counts: v.counts, Messages: v.messages.len(), Uptime: v.now.Sub(v.spool.Started), Refused: len(v.intake.refused),
		Scanned: v.scanner.scan == scanLogged, First: v.monitor.first, Oldest: v.monitor.oldest, Alarms: v.monitor.board.Raised(), Suspensions: len(v.suspender.rules)}
	s.Agents, s.Idle = v.agents.Len()
	return s
}

// Ask implements query.Engine.
func (e *engine) Ask(fn func(query.View)) { e.post(func() { fn(view{e}) }) }

// Kick has a host tried now, whatever it waits for (ETRN), and then calls then with the
// number of threads. It takes some turns.
func (b *base) Kick(host string, then func(threads int)) {
	w, n := query.NewWalk(b.core), 0
	var part func()
	part = func() {
		if _, done := w.Part(func(t *thread.Thread) {
			if query.Kicks(t.Host, host) {
				b.core.Kick(t, b.now)
				n++
			}
		}); !done {
			b.box.later(part)
			return
		}
		then(n)
	}
	part()
}
