package agent

import (
	"os"
	"strconv"
	"strings"

	"zmailer/internal/mail/dsn"
	"zmailer/internal/mail/status"
	"zmailer/internal/run/human"
	"zmailer/internal/wire/taproto"
	"zmailer/internal/workspec"
)

// answer is what the scheduler is told of a recipient.
func (d *Delivery) answer(r *Recipient) taproto.Answer {
	res := &r.result
	a := taproto.Answer{Number: d.number(), Offset: r.Offset, Text: res.Reply}
	switch res.Outcome {
	case status.Delivered:
		a.Word = r.answer
		if a.Word == taproto.OK {
			a.Notary = d.notary(r).String()
		}
		if a.Text == "" {
			a.Text = "Ok"
		}
		return a
	case status.Failed:
		a.Word = taproto.Error2
		if diagnosticType(res) != "smtp" {
			// The text tells no status; where a host has answered, it does.
			a.Notary = d.notary(r).String()
		}
		return a
	}
	a.Notary = d.notary(r).String()
	a.Word = taproto.Deferred
	if res.Host {
		a.Word = taproto.DeferAll
	}
	if res.After > 0 {
		a.Word, a.Relative, a.After = taproto.RetryAt, true, res.After
	}
	return a
}

// number is the decimal number that the i field starts with.
func (d *Delivery) number() uint64 {
	s := d.Spec.Message
	end := 0
	for end < len(s) && s[end] >= '0' && s[end] <= '9' {
		end++
	}
	n, _ := strconv.ParseUint(s[:end], 10, 64)
	return n
}

func (d *Delivery) diagnostic(r *Recipient) *workspec.Diagnostic {
	text := r.result.Text
	if text == "" {
		text = r.result.Reply
	}
	return &workspec.Diagnostic{
		Recipient: r.Offset, HeaderOffset: r.Group.HeaderOffset, NotaryOffset: r.NotaryOffset,
		Time: d.agent.now(), Notary: d.notary(r), Text: text,
	}
}

// notary is the delivery status part: RFC 3464 §2.3.
func (d *Delivery) notary(r *Recipient) workspec.Notary {
	res := &r.result
	n := workspec.Notary{
		Address: strings.TrimSpace(human.Blank(r.Address)), Action: string(dsn.Delayed), Status: res.Code.String(),
		Remote: strings.TrimSpace(human.Blank(res.Remote)), Agent: d.agent.Name + "[" + strconv.Itoa(os.Getpid()) + "]",
	}
	switch res.Outcome {
	case status.Delivered:
		n.Action = string(res.Action)
	case status.Failed:
		n.Action = string(dsn.Failed)
	}
	if res.Reply != "" {
		n.Diagnostic = diagnosticType(res) + "; " + res.Reply
	}
	return n
}

// diagnosticType is "smtp" for what is a reply of a remote server, RFC 3464 §2.3.6;
// what we say ourselves is not.
func diagnosticType(res *Result) string {
	s := res.Reply
	if res.Remote != "" && len(s) > 3 && s[0] >= '2' && s[0] <= '5' && digit(s[1]) && digit(s[2]) && (s[3] == ' ' || s[3] == '-') {
		return "smtp"
	}
	return "x-local"
}

func digit(b byte) bool { return b >= '0' && b <= '9' }
