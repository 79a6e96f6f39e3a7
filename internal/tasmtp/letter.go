package tasmtp

import (
	"strings"

	"zmailer/internal/agent"
	"zmailer/internal/smtpclient"
)

// message is what is sent to recipients of one part.
func (r *Relay) message(d *agent.Delivery, rcpts []*agent.Recipient) *smtpclient.Message {
	first := rcpts[0]
	header := d.Header(first.Group)
	m := &smtpclient.Message{
		From: sender(first), Ret: first.Ret, EnvID: first.EnvID,
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
func sender(rcpt *agent.Recipient) string {
	s := &rcpt.Group.Sender
	if s.Channel == "error" {
		return ""
	}
	return s.For(rcpt.Address)
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
