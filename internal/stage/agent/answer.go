package agent

import (
	"os"
	"strconv"
	"strings"

	"zmailer/internal/mail/address"
	"zmailer/internal/mail/dsn"
	"zmailer/internal/mail/status"
	"zmailer/internal/run/human"
	"zmailer/internal/wire/taproto"
	"zmailer/internal/workspec"
)

// complete fills in what a Deliverer has omitted.
func (r *Recipient) complete(res Result) Result {
	switch res.Outcome {
	case status.Delivered:
		res.Code.Class = 2
	case status.Failed:
		res.Code.Class = 5
	default:
		res.Code.Class = 4
	}
	res.Reply = strings.TrimSpace(human.Blank(res.Reply))
	if res.Reply == "" {
		res.Reply = strings.TrimSpace(human.Blank(res.Text))
	}
	if res.Action == "" {
		res.Action = dsn.Delivered
		if r.Channel == "smtp" || r.Channel == "smtpx" {
			res.Action = dsn.Relayed
		}
	}
	return res
}

// owesSuccess reports whether the sender requested a success report that no other host
// has promised to write.
func (r *Recipient) owesSuccess() bool {
	return r.result.Outcome == status.Delivered && !r.result.Relayed && r.AsksSuccess()
}

// AsksSuccess reports whether the sender requested a success report (RFC 3461 §4.1).
func (r *Recipient) AsksSuccess() bool {
	for word := range strings.SplitSeq(r.Param("NOTIFY"), ",") {
		if strings.EqualFold(word, "SUCCESS") {
			return true
		}
	}
	return false
}

// Param returns the value of a parameter in a recipient's N line, such as NOTIFY and ORCPT
// (RFC 3461 §4.1, §4.2); "": it has none.
func (r *Recipient) Param(key string) string {
	for field := range strings.FieldsSeq(r.Notary) {
		if name, value, _ := strings.Cut(field, "="); strings.EqualFold(name, key) {
			return value
		}
	}
	return ""
}

// way returns what the log has of the way to a recipient: what protected the connection, and
// the address that the sender wrote if that is another one. Both are xtext.
func (r *Recipient) way() string {
	original := r.Param("INRCPT")
	if original == "" {
		original = r.Param("ORCPT")
	}
	kind, value, _ := strings.Cut(original, ";")
	if plain, err := address.DecodeXText(value); err != nil || !strings.EqualFold(kind, "rfc822") && !strings.EqualFold(kind, "utf-8") || strings.EqualFold(plain, r.Address) {
		return r.result.Way
	}
	return strings.TrimSpace("orig-rcpt=" + value + " " + r.result.Way)
}

// doubt returns the event that a recipient's message is sent again.
func (a *Agent) doubt(recipient int64, owner string) workspec.Event {
	return workspec.Event{Time: a.now(), Recipient: recipient, Event: workspec.EventInDoubt,
		Attrs: []workspec.Attr{{Key: "owner", Value: owner}},
		Text:  "its agent died after it had sent the message; it is sent again"}
}

// taken returns the event that a recipient's lock is taken from a dead owner that may have
// delivered. An agent that settles doubts writes it before it overwrites the lock: if it
// dies, too, before it has found out, the doubt about the first owner must not vanish with
// that owner's lock.
func (a *Agent) taken(recipient int64, owner int) workspec.Event {
	return workspec.Event{Time: a.now(), Recipient: recipient, Event: workspec.EventUnlocked,
		Attrs: []workspec.Attr{{Key: "owner", Value: strconv.Itoa(owner)}}}
}

// answer returns the answer to the scheduler about a recipient of a message.
func (a *Agent) answer(message string, r *Recipient) taproto.Answer {
	res := &r.result
	to := taproto.Answer{Number: number(message), Offset: r.Offset, Text: res.Reply}
	switch res.Outcome {
	case status.Delivered:
		to.Word = r.answer
		n := workspec.Notary{Remote: strings.TrimSpace(human.Blank(res.Remote))} // of interest to the log alone
		if to.Word == taproto.OK {
			n = a.notary(r)
		}
		n.Way = r.way()
		to.Notary = n.String()
		if to.Text == "" {
			to.Text = "Ok"
		}
		return to
	case status.Failed:
		to.Word = taproto.Error2
		n := workspec.Notary{Remote: strings.TrimSpace(human.Blank(res.Remote))}
		if diagnosticType(res) != "smtp" {
			// The text has no status unless it is a host's reply.
			n = a.notary(r)
		}
		n.Way = r.way()
		to.Notary = n.String()
		return to
	}
	n := a.notary(r)
	n.Way = r.way()
	to.Notary = n.String()
	to.Word = taproto.Deferred
	if res.Host {
		to.Word = taproto.DeferAll
	}
	if res.After > 0 {
		to.Word, to.Relative, to.After = taproto.RetryAt, true, res.After
	}
	return to
}

// number returns the decimal number at the start of the i field.
func number(s string) uint64 {
	end := 0
	for end < len(s) && s[end] >= '0' && s[end] <= '9' {
		end++
	}
	n, _ := strconv.ParseUint(s[:end], 10, 64)
	return n
}

func (a *Agent) diagnostic(r *Recipient) *workspec.Diagnostic {
	text := r.result.Text
	if text == "" {
		text = r.result.Reply
	}
	return &workspec.Diagnostic{
		Recipient: r.Offset, HeaderOffset: r.Group.HeaderOffset, NotaryOffset: r.NotaryOffset,
		Time: a.now(), Notary: a.notary(r), Text: text,
	}
}

// notary returns the delivery status part: RFC 3464 §2.3.
func (a *Agent) notary(r *Recipient) workspec.Notary {
	res := &r.result
	n := workspec.Notary{
		Address: strings.TrimSpace(human.Blank(r.Address)), Action: string(dsn.Delayed), Status: res.Code.String(),
		Remote: strings.TrimSpace(human.Blank(res.Remote)), Agent: a.Name + "[" + strconv.Itoa(os.Getpid()) + "]",
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

// diagnosticType is "smtp" for a reply of a remote server, RFC 3464 §2.3.6, and x-local
// for our own text.
func diagnosticType(res *Result) string {
	s := res.Reply
	if res.Remote != "" && len(s) > 3 && s[0] >= '2' && s[0] <= '5' && digit(s[1]) && digit(s[2]) && (s[3] == ' ' || s[3] == '-') {
		return "smtp"
	}
	return "x-local"
}

func digit(b byte) bool { return b >= '0' && b <= '9' }
