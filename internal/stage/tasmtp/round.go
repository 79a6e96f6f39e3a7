package tasmtp

import (
	"context"
	"fmt"
	"runtime/debug"
	"strings"
	"sync"

	"zmailer/internal/stage/agent"
)

// round is the delivery of one message: its parts, each a transaction, one after the
// other, and on idle connections beside (a list with a sender of its own for each
// recipient is a transaction for each).
type round struct {
	relay *Relay
	ctx   context.Context
	d     *agent.Delivery
	extra sync.WaitGroup

	mu    sync.Mutex
	parts [][]*agent.Recipient // not begun yet
	down  map[poolKey]*refusal
}

// run performs all parts.
func (r *round) run() {
	var at held
	// Also in a panic: the link is the pool's, and helpers use what is this job's.
	defer r.extra.Wait()
	defer func() { r.relay.keep(&at) }()
	for rcpts := r.next(nil); rcpts != nil; rcpts = r.next(nil) {
		r.part(rcpts, &at)
		r.getHelp(&at)
	}
}

// next takes a part, for a link one to its host; nil: there is none.
func (r *round) next(l *link) []*agent.Recipient {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.parts) == 0 {
		return nil
	}
	rcpts := r.parts[0]
	if key := keyOf(rcpts[0]); l != nil && (key.channel != l.key.channel || key.host != l.key.host) {
		return nil
	}
	r.parts = r.parts[1:]
	return rcpts
}

// part performs one.
func (r *round) part(rcpts []*agent.Recipient, at *held) {
	relay, d := r.relay, r.d
	key := keyOf(rcpts[0])
	if !strings.HasPrefix(key.host, "unix:") {
		key.from = relay.zone.of(d, rcpts)
	}
	why := relay.ask(d, &key, rcpts)
	if why == nil {
		r.mu.Lock()
		why = r.down[key]
		r.mu.Unlock()
	}
	if why == nil {
		if rcpts, why = relay.deliverPart(r.ctx, d, key, rcpts, at); why != nil {
			r.mu.Lock()
			r.down[key] = why
			r.mu.Unlock()
		}
	}
	for _, rcpt := range rcpts {
		d.Done(rcpt, relay.judge(d, key, rcpt, why.result()))
	}
}

// getHelp has more parts on the way at once, on the idle connections that are there.
func (r *round) getHelp(at *held) {
	l := at.link
	if l == nil || !l.conn.Usable() {
		return
	}
	r.mu.Lock()
	more := len(r.parts) - 1
	r.mu.Unlock()
	for ; more > 0; more-- {
		other := r.relay.pool.join(errand{key: l.key})
		if other == nil {
			return
		}
		r.extra.Go(func() { r.help(other) })
	}
}

func (r *round) help(l *link) {
	defer func() {
		// As in the agent's own goroutine: recipients without a result are deferred.
		if p := recover(); p != nil {
			r.relay.log.Error("panic", "id", r.d.ID(), "name", r.d.Job.Name, "host", r.d.Job.Host,
				"reason", fmt.Sprint(p), "stack", string(debug.Stack()))
		}
	}()
	at := held{link: l}
	defer func() { r.relay.keep(&at) }()
	for at.link != nil && at.link.conn.Usable() {
		rcpts := r.next(at.link)
		if rcpts == nil {
			return
		}
		r.part(rcpts, &at)
	}
}
