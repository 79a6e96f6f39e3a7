package smtpclient

import (
	"errors"

	"zmailer/internal/mail/status"
)

// decideAll gives every recipient that was asked for its result.
func (t *transaction) decideAll() {
	final, accepted := 0, 0
	for i := range t.results {
		if t.to[i].path == "" {
			continue // settled by prepare
		}
		var answer Reply
		if t.mail.Class() == 2 && t.replies[i].Class() == 2 {
			if final < len(t.finals) {
				answer = t.finals[final]
			}
			if t.c.cfg.LMTP {
				final++
			}
		}
		r := t.decide(i, answer)
		r.Accepted = t.replies[i].Class() == 2
		if t.drew.Code != 0 && r.Accepted {
			if r.InDoubt && accepted == len(t.finals) {
				r.Reply = t.drew
			}
			accepted++
		}
		if r.Outcome != status.Delivered || !t.m.Recipients[i].Brief {
			r.Text = t.text(i, answer, r.Err)
		}
		t.results[i] = r
	}
}

// decide finds the reply that a recipient's outcome follows from: the first that
// refused it, else the one to the final dot. Without one it is temporary, and in doubt if
// the dot has left.
func (t *transaction) decide(i int, answer Reply) Result {
	switch {
	case !answer.IsZero():
		return byReply(PhaseDot, answer)
	case t.astray:
		// No answer to the commands before says anything for certain.
	case t.mail.Class() >= 4:
		return byReply(PhaseMail, t.mail)
	case t.replies[i].Class() >= 4:
		return byReply(PhaseRcpt, t.recipientReply(i))
	case t.data.Class() >= 4:
		return byReply(PhaseData, t.data)
	case !t.last.IsZero():
		r := byReply(t.lastPhase, t.last) // the message was not looked at
		r.Another = t.lastPhase == PhaseRcpt
		return r
	}
	r := Result{Code: status.SystemTrouble, Phase: PhaseBody, Err: t.err, InDoubt: t.sent}
	var broke *ConnError
	if errors.As(t.err, &broke) {
		r.Code, r.Phase = status.BadConnection, broke.Phase
	}
	return r
}

// recipientReply is the reply to a RCPT. RFC 5321 §4.5.3.1.10: 552 from a server
// that has taken enough recipients means 452.
func (t *transaction) recipientReply(i int) Reply {
	r := t.replies[i]
	code := r.Status()
	tooMany := code.Subject == 5 && code.Detail == 3 || code.Subject == 0
	if r.Code == 552 && t.accepted > 0 && tooMany {
		r.Code = 452
	}
	return r
}

// TooMany tells a recipient that was put off only because the transaction had
// enough of them (RFC 5321 §4.5.3.1.10): the next transaction may take it at once.
func (r *Result) TooMany() bool {
	return r.Phase == PhaseRcpt && r.Reply.Code == 452 &&
		(r.Code.Subject == 5 && r.Code.Detail == 3 || r.Code.Subject == 0)
}

// byReply is the result of a reply: its class decides.
func byReply(p Phase, r Reply) Result {
	res := Result{Phase: p, Reply: r, Code: r.Status()}
	switch r.Class() {
	case 2:
		res.Outcome = status.Delivered
	case 5:
		res.Outcome = status.Failed
	}
	return res
}

// text is the dialogue as it concerns one recipient.
func (t *transaction) text(i int, answer Reply, err error) string {
	var d dialogue
	rcpt := t.lines[i]
	d.Grow(t.mailLine.to - t.mailLine.from + rcpt.to - rcpt.from + len(t.mail.Text) + len(t.replies[i].Text) +
		len(t.data.Text) + len(answer.Text) + 80)
	if t.mailLine.to > 0 {
		d.said(string(t.cmd[t.mailLine.from:t.mailLine.to]))
		d.answered(t.mail)
	}
	if t.mail.Class() < 4 && rcpt.to > rcpt.from {
		d.said(string(t.cmd[rcpt.from:rcpt.to]))
		d.answered(t.replies[i])
	}
	if t.replies[i].Class() == 2 && t.dataAsked {
		d.said("DATA")
		d.answered(t.data)
		if t.sent {
			d.said(".")
			d.answered(answer)
		}
	}
	if t.replies[i].Class() < 4 && t.lastPhase != PhaseData && answer.IsZero() {
		d.answered(t.last)
	}
	if err != nil {
		d.broke(err)
	}
	return d.String()
}
