package tasmtp

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"zmailer/internal/mail/status"
	"zmailer/internal/stage/agent"
	"zmailer/internal/wire/smtpclient"
)

// maxRcpts is how many recipients one transaction has at most: every server must take so
// many (RFC 5321 §4.5.3.1.8).
const maxRcpts = 100

// Deliver gives every recipient of a job a result: one transaction for those who
// share channel, host, sender, headers and what the sender asked to be told, or several
// where they are many.
func (r *Relay) Deliver(ctx context.Context, d *agent.Delivery) {
	(&round{relay: r, ctx: ctx, d: d, parts: parts(d.Recipients, apart(d)), down: map[poolKey]*refusal{}}).run()
}

// keyOf is whom a recipient's connection serves. Host names know no case, paths do.
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
		s := share{to: keyOf(rcpt), channel: rcpt.Group.Sender.Channel, from: sender(rcpt), header: rcpt.Group.HeaderOffset, ret: rcpt.Ret, envid: rcpt.EnvID, require: requires(rcpt)}
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
func (r *Relay) deliverPart(ctx context.Context, d *agent.Delivery, key poolKey, rcpts []*agent.Recipient, at *held) ([]*agent.Recipient, *refusal) {
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
			if more = others(todo[0], results); more != nil {
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

// held is the connection of a job's last transaction, for its next one: that needs no
// idle time.
type held struct {
	link    *link
	sending bool // a transaction is on it, or a panic ended one
}

// keep gives a job's connection back.
func (r *Relay) keep(at *held) {
	if at.link != nil {
		if at.sending {
			at.link.conn.Close() // nobody knows what stands on it
		}
		r.pool.release(at.link)
		*at = held{}
	}
}

// maxStale is how many connections may end before a message's turn until it is put off.
const maxStale = 3

// send performs one transaction, on an open connection if there is one.
func (r *Relay) send(ctx context.Context, d *agent.Delivery, key poolKey, dest *destination, rcpts []*agent.Recipient, at *held) (*link, []smtpclient.Result, *refusal) {
	e := errand{key: key, open: func() (*link, *refusal) { return r.connect(ctx, key, dest) }}
	for try := 1; ; try++ {
		if l := at.link; l == nil || !l.key.same(key) || !key.from.has(l.source) || !l.conn.Usable() {
			r.keep(at)
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
// others gives to further transactions get none.
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
			res = r.judge(d, l.key, rcpts[i], res)
		}
		if len(d.Recipients) > 1 && drew(&results[i], l.lmtp) && res.Outcome == status.Deferred {
			reply, moved := strings.CutSuffix(res.Reply, otherSource)
			if res.Reply = reply + triedApart; moved {
				res.Reply += otherSource // moves looks for it at the end
			}
		}
		decided, outcomes = append(decided, rcpts[i]), append(outcomes, res)
	}
	d.DoneAll(decided, outcomes)
	return again
}
