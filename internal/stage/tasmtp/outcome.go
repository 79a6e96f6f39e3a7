package tasmtp

import (
	"zmailer/internal/mail/dsn"
	"zmailer/internal/mail/status"
	"zmailer/internal/stage/agent"
	"zmailer/internal/wire/smtpclient"
)

// result is what recipients of a destination without a server are told.
func (why *refusal) result() agent.Result {
	return agent.Result{
		Outcome: why.outcome, Code: why.code, Reply: why.reply, Remote: why.remote, Text: why.text,
		Host: why.outcome == status.Deferred && why.weight != weightOurs && !why.mine,
	}
}

// result turns the outcome of a transaction into what the agent records.
func (l *link) result(res *smtpclient.Result) agent.Result {
	out := agent.Result{Outcome: res.Outcome, Code: res.Code, Remote: l.remote, Text: res.Text}
	if res.Err != nil {
		out.Reply = brief(res.Err)
		if res.InDoubt {
			out.Reply += "; in doubt, the server may have taken the message"
		}
	} else {
		out.Reply = res.Reply.String()
	}
	if res.Code == status.SystemTrouble && res.Reply.IsZero() {
		out.Remote = "" // a fault of ours says nothing about them
	}
	switch res.Outcome {
	case status.Deferred:
		out.Host = hostTrouble(res)
	case status.Delivered:
		out.Relayed = l.conn.Extensions().DSN // RFC 3461 §4.1: they have the wishes now
		out.Action = dsn.Relayed
		if l.lmtp {
			out.Action = dsn.Delivered
		}
	}
	return out
}

// hostTrouble tells a deferral that every message to the host would meet: the
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
