package tasmtp

import (
	"context"
	"errors"
	"slices"
	"strings"

	"zmailer/internal/agent"
	"zmailer/internal/smtpclient"
	"zmailer/internal/status"
	"zmailer/internal/workspec"
)

// Deliver gives every recipient of a job a result: one transaction for those who
// share channel, host, headers and what the sender asked to be told.
func (r *Relay) Deliver(ctx context.Context, d *agent.Delivery) {
	down := map[poolKey]*refusal{}
	for _, rcpts := range parts(d.Recipients) {
		key := keyOf(rcpts[0])
		if !strings.HasPrefix(key.host, "unix:") {
			key.from = r.zone.of(d, rcpts)
		}
		why := down[key]
		if why == nil {
			rcpts, why = r.deliverPart(ctx, d, key, rcpts)
			down[key] = why
		}
		for _, rcpt := range rcpts {
			d.Done(rcpt, r.judge(d, key, rcpt, why.result()))
		}
	}
}

// keyOf is whom a recipient's connection serves. Host names know no case, paths do.
func keyOf(rcpt *agent.Recipient) poolKey {
	if strings.HasPrefix(rcpt.Host, "unix:") {
		return poolKey{channel: rcpt.Channel, host: rcpt.Host}
	}
	return poolKey{channel: rcpt.Channel, host: strings.ToLower(rcpt.Host)}
}

// parts groups recipients that fit into one transaction, in the order of the file.
func parts(rcpts []*agent.Recipient) [][]*agent.Recipient {
	var all [][]*agent.Recipient
	for _, rcpt := range rcpts {
		i := slices.IndexFunc(all, func(part []*agent.Recipient) bool {
			p := part[0]
			return p.Group == rcpt.Group && keyOf(p) == keyOf(rcpt) && p.Ret == rcpt.Ret && p.EnvID == rcpt.EnvID
		})
		if i < 0 {
			all = append(all, nil)
			i = len(all) - 1
		}
		all[i] = append(all[i], rcpt)
	}
	return all
}

// deliverPart sends the message to recipients of one transaction, or of several if
// the server does not take so many at once. Those that it returns have no server,
// for the reason given.
func (r *Relay) deliverPart(ctx context.Context, d *agent.Delivery, key poolKey, rcpts []*agent.Recipient) ([]*agent.Recipient, *refusal) {
	dest, err := parseDestination(key.channel, key.host, r.port)
	if errors.Is(err, errRoute) {
		return rcpts, &refusal{code: badSetup, reply: err.Error()}
	}
	if err != nil {
		return rcpts, never(status.BadDomain, err.Error())
	}
	for len(rcpts) > 0 {
		l, results, why := r.send(ctx, d, key, &dest, rcpts)
		if why != nil {
			return rcpts, why
		}
		rcpts = r.record(d, l, rcpts, results)
		if l.conn.Usable() {
			r.pool.keep(l)
		} else {
			l.conn.Close()
		}
	}
	return nil, nil
}

// send performs one transaction, on a kept connection if there is one.
func (r *Relay) send(ctx context.Context, d *agent.Delivery, key poolKey, dest *destination, rcpts []*agent.Recipient) (*link, []smtpclient.Result, *refusal) {
	if l := r.pool.take(key); l != nil {
		results, err := l.conn.Send(r.message(d, rcpts))
		if !errors.Is(err, smtpclient.ErrStale) {
			return l, results, nil
		}
		// Nothing was attempted. Another kept one would be as old: a new one is not.
		r.log.Debug("stale", "channel", key.channel, "host", key.host, "remote", l.remote)
	}
	l, why := r.connect(ctx, key, dest)
	if why != nil {
		return nil, nil, why
	}
	results, _ := l.conn.Send(r.message(d, rcpts)) // never stale at its first message
	return l, results, nil
}

// message is what is sent to recipients of one part.
func (r *Relay) message(d *agent.Delivery, rcpts []*agent.Recipient) *smtpclient.Message {
	first := rcpts[0]
	header := d.Header(first.Group)
	m := &smtpclient.Message{
		From: sender(&first.Group.Sender), Ret: first.Ret, EnvID: first.EnvID,
		Header: header, Body: d.Body(), Size: int64(len(header)) + d.BodySize(),
		Recipients: make([]smtpclient.Recipient, len(rcpts)),
	}
	for i, rcpt := range rcpts {
		notify, orcpt := wishes(rcpt.Notary)
		m.Recipients[i] = smtpclient.Recipient{Address: rcpt.Address, Notify: notify, ORcpt: orcpt}
	}
	m.Sent = func(accepted []int) error {
		if len(accepted) == len(rcpts) {
			return d.SentTo(rcpts)
		}
		some := make([]*agent.Recipient, len(accepted))
		for i, n := range accepted {
			some[i] = rcpts[n]
		}
		return d.SentTo(some)
	}
	return m
}

// sender is the address for MAIL; that of channel error is the null sender, whatever
// address stands beside it.
func sender(s *workspec.Sender) string {
	if s.Channel == "error" {
		return ""
	}
	return s.Address
}

// wishes takes NOTIFY and ORCPT (RFC 3461 §4.1, §4.2) out of an N line; INRCPT and
// INFROM, which a ZMailer router adds, are no parameters of RCPT.
func wishes(notary string) (notify, orcpt string) {
	for f := range strings.FieldsSeq(notary) {
		key, value, _ := strings.Cut(f, "=")
		switch {
		case strings.EqualFold(key, "NOTIFY"):
			notify = value
		case strings.EqualFold(key, "ORCPT"):
			orcpt = value
		}
	}
	return notify, orcpt
}

// record gives recipients their results and returns those that another transaction
// may take at once: the server had enough of them for this one and took some.
func (r *Relay) record(d *agent.Delivery, l *link, rcpts []*agent.Recipient, results []smtpclient.Result) []*agent.Recipient {
	taken := false
	for i := range results {
		taken = taken || results[i].Phase > smtpclient.PhaseRcpt
	}
	var again []*agent.Recipient
	for i := range results {
		if taken && l.conn.Usable() && results[i].TooMany() {
			again = append(again, rcpts[i])
			continue
		}
		res := l.result(&results[i])
		if results[i].InDoubt {
			r.log.Warn("in-doubt", "id", d.ID, "rcpt", rcpts[i].Address, "channel", l.key.channel, "host", l.key.host, "reply", res.Reply)
		} else {
			res = r.judge(d, l.key, rcpts[i], res)
		}
		d.Done(rcpts[i], res)
	}
	return again
}
