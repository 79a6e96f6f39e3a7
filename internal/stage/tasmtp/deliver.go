package tasmtp

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"zmailer/internal/mail/dsn"
	"zmailer/internal/mail/status"
	"zmailer/internal/stage/agent"
	"zmailer/internal/wire/smtpclient"
	"zmailer/internal/workspec"
)

// maxRcpts is how many recipients one transaction has at most: every server must take so
// many (RFC 5321 §4.5.3.1.8).
const maxRcpts = 100

// Deliver gives every recipient of a job a result: one transaction for those who
// share channel, host, sender, headers and requested notifications, or several if there
// are many.
func (r *Relay) Deliver(ctx context.Context, d *agent.Delivery) {
	(&delivery{relay: r, ctx: ctx, d: d, parts: parts(d.Recipients, separated(d)), down: map[poolKey]*refusal{}}).run()
}

// keyOf returns the key of a recipient's connection. Host names know no case, paths do.
func keyOf(rcpt *agent.Recipient) poolKey {
	if strings.HasPrefix(rcpt.Host, "unix:") {
		return poolKey{channel: rcpt.Channel, host: rcpt.Host}
	}
	return poolKey{channel: rcpt.Channel, host: strings.ToLower(rcpt.Host)}
}

// share is what recipients of one transaction have in common.
type share struct {
	to            poolKey
	channel, from string // of the sender; with VERP that is another one for each
	header        int64
	ret, envid    string
	require       bool // TLS (RFC 8689)
}

// parts groups recipients that fit into one transaction, in the order of the file. Those to
// be kept apart come last, each in a transaction of its own.
func parts(rcpts []*agent.Recipient, apart map[int64]bool) [][]*agent.Recipient {
	var all, alone [][]*agent.Recipient
	last := map[share]int{} // where in all the next one goes
	for _, rcpt := range rcpts {
		if apart[rcpt.Offset] {
			alone = append(alone, []*agent.Recipient{rcpt})
			continue
		}
		s := share{to: keyOf(rcpt), channel: rcpt.Group.Sender.Channel, from: sender(rcpt), header: rcpt.Group.HeaderOffset, ret: rcpt.Ret, envid: rcpt.EnvID, require: requiresTLS(rcpt)}
		i, there := last[s]
		if !there || len(all[i]) == maxRcpts {
			all = append(all, nil)
			i = len(all) - 1
			last[s] = i
		}
		all[i] = append(all[i], rcpt)
	}
	return append(all, alone...)
}

// deliverPart sends the message to recipients of one transaction, or of several if
// the server does not take them together. Those that it returns have no server,
// for the reason given.
func (r *Relay) deliverPart(ctx context.Context, d *agent.Delivery, key poolKey, rcpts []*agent.Recipient, at *lastLink) ([]*agent.Recipient, *refusal) {
	dest, err := parseDestination(key.channel, key.host, r.port)
	if errors.Is(err, errRoute) {
		return rcpts, &refusal{code: badSetup, reply: err.Error()}
	}
	if err != nil {
		return rcpts, never(status.BadDomain, err.Error())
	}
	splits := 0
	for todo := [][]*agent.Recipient{rcpts}; len(todo) > 0; {
		l, results, why := r.send(ctx, d, key, &dest, todo[0], at)
		if why != nil {
			return slices.Concat(todo...), why
		}
		var more [][]*agent.Recipient
		if splits < maxSplits {
			if more = regroup(todo[0], results); more != nil {
				splits++
			}
		}
		again := r.record(d, l, todo[0], results, more != nil)
		if len(again) > 0 {
			more = append(more, again)
		}
		todo = append(more, todo[1:]...)
	}
	return nil, nil
}

// lastLink is the connection of a job's last transaction, for its next one. It is kept
// whatever the idle time is.
type lastLink struct {
	link    *link
	sending bool // a transaction is on it, or a panic ended one
}

// releaseLink returns a job's connection to the pool.
func (r *Relay) releaseLink(at *lastLink) {
	if at.link != nil {
		if at.sending {
			at.link.conn.Close() // its state is unknown
		}
		r.pool.release(at.link)
		*at = lastLink{}
	}
}

// maxStale is how many connections may end before a message's turn until it is put off.
const maxStale = 3

// send performs one transaction, on an open connection if there is one.
func (r *Relay) send(ctx context.Context, d *agent.Delivery, key poolKey, dest *destination, rcpts []*agent.Recipient, at *lastLink) (*link, []smtpclient.Result, *refusal) {
	e := request{key: key, open: func() (*link, *refusal) { return r.connect(ctx, key, dest) }}
	for try := 1; ; try++ {
		if l := at.link; l == nil || !l.key.same(key) || !key.from.has(l.source) || !l.conn.Usable() {
			r.releaseLink(at)
			var why *refusal
			if at.link, why = r.pool.get(e); why != nil {
				return nil, nil, why
			}
		}
		l := at.link
		at.sending = true
		results, err := r.transact(l, d, rcpts)
		at.sending = false
		if err == nil || try == maxStale {
			if stepwise(l, results) {
				r.pool.slow(key)
				r.log.Warn("pipelining-off", "channel", key.channel, "host", key.host, "remote", l.remote, "for", slowTime,
					"advice", "the server offers PIPELINING and fell silent when it was used; a line in discard-ehlo-keywords makes this lasting")
			}
			return l, results, nil
		}
		// Nothing was attempted. Another kept one would be as old: a new one is not.
		r.log.Debug("stale", "channel", key.channel, "host", key.host, "remote", l.remote, "reason", err)
		e.since = time.Now()
	}
}

// stepwise reports whether a server that offers PIPELINING has fallen silent behind its
// answer to the first of several commands: it may take one at a time.
func stepwise(l *link, results []smtpclient.Result) bool {
	if !l.conn.Extensions().Pipelining {
		return false
	}
	for i := range results {
		if lost, ok := results[i].Err.(*smtpclient.ConnError); ok {
			return lost.Timeout() && (lost.Phase == smtpclient.PhaseRcpt || lost.Phase == smtpclient.PhaseData)
		}
	}
	return false
}

// record gives recipients their results and returns those that another transaction
// may take at once: the server had enough of them for this one and took some. Those that
// regroup gives to further transactions get none.
func (r *Relay) record(d *agent.Delivery, l *link, rcpts []*agent.Recipient, results []smtpclient.Result, split bool) []*agent.Recipient {
	taken := false
	for i := range results {
		taken = taken || results[i].Phase > smtpclient.PhaseRcpt
	}
	var again, decided []*agent.Recipient
	var outcomes []agent.Result
	for i := range results {
		if split && results[i].Another {
			continue
		}
		if taken && l.conn.Usable() && results[i].TooMany() {
			again = append(again, rcpts[i])
			continue
		}
		res := l.result(&results[i])
		if results[i].InDoubt {
			r.log.Warn("in-doubt", "id", d.ID(), "rcpt", rcpts[i].Address, "channel", l.key.channel, "host", l.key.host, "reply", res.Reply)
		} else if !results[i].Another {
			res = r.applyRules(d, l.key, rcpts[i], res)
		}
		if len(d.Recipients) > 1 && got421(&results[i], l.lmtp) && res.Outcome == status.Deferred {
			reply, moved := strings.CutSuffix(res.Reply, workspec.OtherSource)
			if res.Reply = reply + aloneNext; moved {
				res.Reply += workspec.OtherSource // SourceMoves wants it at the end
			}
		}
		decided, outcomes = append(decided, rcpts[i]), append(outcomes, res)
	}
	d.DoneAll(decided, outcomes)
	return again
}

// delivery delivers one message: its parts, each a transaction, one after the other, and
// in parallel on idle connections (a list with a sender of its own for each
// recipient is a transaction for each).
type delivery struct {
	relay *Relay
	ctx   context.Context
	d     *agent.Delivery
	extra sync.WaitGroup

	mu    sync.Mutex
	parts [][]*agent.Recipient // not begun yet
	down  map[poolKey]*refusal
}

// run delivers all parts.
func (r *delivery) run() {
	var at lastLink
	// Also in a panic: the link belongs to the pool, and helpers use this job's data.
	defer r.extra.Wait()
	defer func() { r.relay.releaseLink(&at) }()
	for rcpts := r.next(nil); rcpts != nil; rcpts = r.next(nil) {
		r.part(rcpts, &at)
		r.startHelpers(&at)
	}
}

// next takes a part, for a link one to its host; nil: there is none.
func (r *delivery) next(l *link) []*agent.Recipient {
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

// part delivers one part.
func (r *delivery) part(rcpts []*agent.Recipient, at *lastLink) {
	relay, d := r.relay, r.d
	key := keyOf(rcpts[0])
	if !strings.HasPrefix(key.host, "unix:") {
		key.from = relay.zone.of(d, rcpts)
	}
	why := relay.setTerms(d, &key, rcpts)
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
		d.Done(rcpt, relay.applyRules(d, key, rcpt, why.result()))
	}
}

// startHelpers has more parts on the way at once, on the idle connections that are there.
func (r *delivery) startHelpers(at *lastLink) {
	l := at.link
	if l == nil || !l.conn.Usable() {
		return
	}
	r.mu.Lock()
	more := len(r.parts) - 1
	r.mu.Unlock()
	for ; more > 0; more-- {
		other := r.relay.pool.join(request{key: l.key})
		if other == nil {
			return
		}
		r.extra.Go(func() { r.help(other) })
	}
}

func (r *delivery) help(l *link) {
	defer func() {
		// As in the agent's own goroutine: recipients without a result are deferred.
		if p := recover(); p != nil {
			r.relay.log.Error("panic", "id", r.d.ID(), "name", r.d.Job.Name, "host", r.d.Job.Host,
				"reason", fmt.Sprint(p), "stack", string(debug.Stack()))
		}
	}()
	at := lastLink{link: l}
	defer func() { r.relay.releaseLink(&at) }()
	for at.link != nil && at.link.conn.Usable() {
		rcpts := r.next(at.link)
		if rcpts == nil {
			return
		}
		r.part(rcpts, &at)
	}
}

// maxSplits is how often one transaction is divided because a recipient got 421, which
// ended the connection for all. Each division costs the server another connection.
const maxSplits = 2

// aloneNext ends the reply of a recipient that drew 421. The scheduler writes it into the
// history, where the next attempt finds it.
const aloneNext = "; the next attempt has a transaction for this recipient alone"

// got421 reports whether the server said 421 to a recipient and to none of the others: in
// answer to RCPT, or with LMTP to the final dot.
func got421(res *smtpclient.Result, lmtp bool) bool {
	return res.Reply.Code == 421 && !res.Another && (res.Phase == smtpclient.PhaseRcpt || lmtp && res.Phase == smtpclient.PhaseDot)
}

// separated returns the offsets of the recipients whose last attempt ended by a 421 of their
// own; nil if there are none, which costs next to nothing to find out.
func separated(d *agent.Delivery) map[int64]bool {
	var found map[int64]bool
	for i := range d.Spec.History {
		h := &d.Spec.History[i]
		if h.Event != workspec.EventDeferred {
			continue
		}
		own := strings.Contains(h.Text, aloneNext)
		if own && found == nil {
			found = map[int64]bool{}
		}
		if own || found != nil {
			for r := range d.Spec.About(h) {
				found[r.Offset] = own
			}
		}
	}
	return found
}

// regroup returns the recipients of a transaction that another one's 421 has ended, for
// transactions of their own at once: those that were accepted, and those that had no answer
// yet.
func regroup(rcpts []*agent.Recipient, results []smtpclient.Result) [][]*agent.Recipient {
	var accepted, unanswered []*agent.Recipient
	for i := range results {
		switch {
		case !results[i].Another:
		case results[i].Accepted:
			accepted = append(accepted, rcpts[i])
		default:
			unanswered = append(unanswered, rcpts[i])
		}
	}
	var groups [][]*agent.Recipient
	for _, g := range [][]*agent.Recipient{accepted, unanswered} {
		if len(g) > 0 {
			groups = append(groups, g)
		}
	}
	return groups
}

// result returns the result of the recipients of a destination without a server.
func (why *refusal) result() agent.Result {
	return agent.Result{
		Outcome: why.outcome, Code: why.code, Reply: why.reply, Remote: why.remote, Text: why.text,
		Host: why.outcome == status.Deferred && why.weight != weightOurs && !why.mine,
	}
}

// result turns the outcome of a transaction into what the agent records.
func (l *link) result(res *smtpclient.Result) agent.Result {
	out := agent.Result{Outcome: res.Outcome, Code: res.Code, Remote: l.remote, Text: res.Text, Way: l.way}
	if res.Err != nil {
		out.Reply = brief(res.Err)
		if res.InDoubt {
			out.Reply += "; in doubt, the server may have taken the message"
		}
	} else {
		out.Reply = res.Reply.String()
	}
	if res.Code == status.SystemTrouble && res.Reply.IsZero() {
		out.Remote, out.Way = "", "" // the fault is ours, not the server's
	}
	switch res.Outcome {
	case status.Deferred:
		out.Host = hostTrouble(res)
	case status.Delivered:
		out.Relayed = l.conn.Extensions().DSN // RFC 3461 §4.1: the server has the notification requests now
		out.Action = dsn.Relayed
		if l.lmtp {
			out.Action = dsn.Delivered
		}
	}
	return out
}

// hostTrouble reports whether every message to the host would be deferred: the
// connection broke or fell silent, or MAIL was put off. Later answers are about
// recipients or the message, and a connection that a message breaks must not keep
// the others waiting (K14); if the host is down, they find out by themselves.
func hostTrouble(res *smtpclient.Result) bool {
	if broke, ok := res.Err.(*smtpclient.ConnError); ok {
		return broke.Phase <= smtpclient.PhaseMail || broke.Timeout() && broke.Phase < smtpclient.PhaseBody
	}
	if res.Err != nil || res.Phase != smtpclient.PhaseMail {
		return false
	}
	// An address (X.1.x), the size (452, X.3.4) or the content (X.6.x) is this
	// message's: RFC 3463 §3, RFC 1870 §6.
	c := res.Code
	return c.Subject != 1 && c.Subject != 6 && res.Reply.Code != 452 &&
		!(c.Subject == 3 && c.Detail == 4)
}
