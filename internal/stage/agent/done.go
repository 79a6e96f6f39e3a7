package agent

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"zmailer/internal/mail/dsn"
	"zmailer/internal/mail/status"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/human"
	"zmailer/internal/wire/taproto"
	"zmailer/internal/workspec"
)

// Done records a recipient's result. A success is marked in the file at once; a
// failure's diagnostic and tag are written when Deliver has returned, all of a
// job's with one fsync. A recipient has one result: a second one is logged and
// dropped.
func (d *Delivery) Done(r *Recipient, res Result) {
	d.DoneAll([]*Recipient{r}, []Result{res})
}

// DoneAll is Done for recipients, in the order of the file, who get their results at the
// same time: their marks are written together.
func (d *Delivery) DoneAll(list []*Recipient, results []Result) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delivered := make([]*Recipient, 0, len(list))
	for i, r := range list {
		res := results[i]
		if r.done {
			d.agent.log().Error("second-result", "id", d.ID(), "rcpt", r.Address,
				"status", res.Code, "reply", res.Reply, "first", r.result.Reply)
			continue
		}
		r.done = true
		r.result = d.complete(r, res)
		if i > 0 && r.result.Reply == list[i-1].result.Reply {
			r.result.Reply = list[i-1].result.Reply // one string for all of a transaction
		}
		if r.result.Outcome == status.Delivered {
			delivered = append(delivered, r)
		}
	}
	d.markDelivered(delivered)
}

// complete fills in what a Deliverer has omitted.
func (d *Delivery) complete(r *Recipient, res Result) Result {
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

// markDelivered sets the final tags of delivered recipients, after diagnostics where the
// sender requested a success report (RFC 3461 §4.1). If these cannot be written the
// scheduler is asked to write them: a late report is better than a second message.
func (d *Delivery) markDelivered(list []*Recipient) {
	d.lines = d.lines[:0]
	for _, r := range list {
		r.answer, r.marked = taproto.OK3, true
		if d.owesSuccess(r) {
			r.answer = taproto.OK2
			d.lines = workspec.AppendDiagnostic(d.lines, d.diagnostic(r))
		} else {
			r.result.Text = "" // the dialogue is not needed, and there may be 100,000
		}
	}
	if len(d.lines) > 0 {
		// Crash: delivered, the tags still the lock's: in doubt.
		if err := d.file.Append(d.lines); err != nil {
			for _, r := range list {
				if r.answer == taproto.OK2 {
					r.answer = taproto.OK
					d.logFault(r, err)
				}
			}
		}
	}
	// Crash: every reader of the file sees the tag; a power loss may restore the lock of a
	// dead owner, and the message is delivered twice.
	d.tags.setAll(workspec.TagOK, list, func(r *Recipient, err error) {
		d.logFault(r, err)
		r.marked = false
	})
}

// owesSuccess reports whether the sender requested a success report that no other host
// has promised to write.
func (d *Delivery) owesSuccess(r *Recipient) bool {
	return r.result.Outcome == status.Delivered && !r.result.Relayed && r.AsksSuccess()
}

// AsksSuccess reports whether the sender requested a success report (RFC 3461 §4.1).
func (r *Recipient) AsksSuccess() bool {
	for field := range strings.FieldsSeq(r.Notary) {
		key, list, _ := strings.Cut(field, "=")
		if !strings.EqualFold(key, "NOTIFY") {
			continue
		}
		for word := range strings.SplitSeq(list, ",") {
			if strings.EqualFold(word, "SUCCESS") {
				return true
			}
		}
	}
	return false
}

// finish marks all recipients that are not marked yet.
func (d *Delivery) finish() {
	d.mu.Lock()
	defer d.mu.Unlock()
	delivered, others := 0, 0
	for _, r := range d.Recipients {
		switch {
		case !r.done:
			r.done = true
			r.result = d.complete(r, Result{Code: status.SystemTrouble, Reply: "the agent stopped before it had a result"})
		case r.result.Outcome == status.Delivered && !r.marked:
			d.markAgain(r)
		}
		if r.result.Outcome == status.Delivered {
			delivered++
		} else {
			others++
		}
	}
	d.markDeferred()
	d.markFailed(delivered > 0 && others > 0)
	d.follow()
}

// markAgain tries to set a delivered recipient's tag once more. If that fails the lock
// stays, and the scheduler, which keeps trying, is asked to set the tag: a deferral would
// send the message twice. If the scheduler dies before, the agent that takes the lock over
// knows that the message may have been sent.
func (d *Delivery) markAgain(r *Recipient) {
	if err := d.tags.set(r, workspec.TagOK); err != nil {
		d.logFault(r, err)
		r.answer = taproto.OK
	}
	r.marked = true
}

// markDeferred releases the locks of deferred recipients.
func (d *Delivery) markDeferred() {
	var open []*Recipient
	for _, r := range d.Recipients {
		if r.result.Outcome != status.Deferred || r.marked {
			continue
		}
		d.markOpen(r)
		r.marked = true
		open = append(open, r)
	}
	// Crash: blank or the locks of a dead owner; both are open.
	d.tags.setAll(workspec.TagToDo, open, d.logFault)
}

// markOpen makes the doubt about a recipient outlive its deferral, which the scheduler
// writes next and which would otherwise be the result of a "sent": the lock is released
// like that of a dead agent, since it is unknown whether the message was delivered.
func (d *Delivery) markOpen(r *Recipient) {
	owner := ""
	switch {
	case r.resent && r.result.Uncertain:
		owner = strconv.Itoa(d.agent.Owner.Number())
	case !r.resent && r.Sent != nil && d.agent.Settles:
		owner = r.Sent.Get("owner") // the Deliverer did not find out
	default:
		return
	}
	d.lines = workspec.AppendEvent(d.lines[:0], &workspec.Event{Time: d.agent.now(), Recipient: r.Offset, Event: workspec.EventUnlocked,
		Attrs: []workspec.Attr{{Key: "owner", Value: owner}}})
	// Crash: the lock of a dead owner, which the scheduler releases.
	if err := d.file.Append(d.lines); err != nil {
		d.logFault(r, err)
	}
}

func (d *Delivery) unlock(r *Recipient) error {
	// Crash: blank or the lock of a dead owner; both are open.
	return d.tags.set(r, workspec.TagToDo)
}

// markFailed writes the diagnostics of all failed recipients, makes them durable,
// and then sets the tags. The same fsync makes a partial delivery durable: what was
// delivered must not be delivered again when the rest is tried.
func (d *Delivery) markFailed(partial bool) {
	d.lines = d.lines[:0]
	var failed []*Recipient
	for _, r := range d.Recipients {
		if r.result.Outcome == status.Failed {
			failed = append(failed, r)
			d.lines = workspec.AppendDiagnostic(d.lines, d.diagnostic(r))
		}
	}
	if len(d.lines) == 0 && !partial {
		return
	}
	var err error
	if len(d.lines) > 0 {
		// Crash: diagnostics of recipients that are still locked by a dead owner: they
		// are tried again and get another line.
		err = d.file.Append(d.lines)
	}
	if errors.Is(err, postoffice.ErrReplaced) {
		return // follow marks them in the new file
	}
	if err == nil {
		// Crash: as before; a tag says failed only if its diagnostic is on the disk.
		err = d.file.Sync()
	}
	if err == nil {
		d.tags.setAll(workspec.TagFailed, failed, d.notFailed)
		return
	}
	for _, r := range failed {
		d.notFailed(r, err)
	}
	if len(d.lines) == 0 {
		d.agent.log().Error("disk", "id", d.ID(), "name", d.Job.Name, "reason", err)
	}
}

// notFailed releases a recipient whose failure could not be recorded.
func (d *Delivery) notFailed(r *Recipient, err error) {
	d.fault(r, err)
	if uerr := d.unlock(r); uerr != nil {
		d.logFault(r, uerr)
	}
}

// fault turns a result that could not be written into a deferral: an answer to the
// scheduler must not be more final than the file.
func (d *Delivery) fault(r *Recipient, err error) {
	d.logFault(r, err)
	was := r.result
	r.result = Result{Outcome: status.Deferred, Code: status.SystemTrouble, Action: was.Action,
		Reply: strings.TrimSpace(human.Blank("could not record that it was " + was.Outcome.String() + ": " + err.Error()))}
}

func (d *Delivery) logFault(r *Recipient, err error) {
	d.agent.log().Error("disk", "id", d.ID(), "name", d.Job.Name, "rcpt", r.Address,
		"result", r.result.Outcome, "reply", r.result.Reply, "reason", err)
}

// maxListed is how many recipients a sent event lists; with more it is about all that its
// owner has locked.
const maxListed = 100

// doubt is the event that a recipient's message is sent again.
func (d *Delivery) doubt(recipient int64, owner string) workspec.Event {
	return workspec.Event{Time: d.agent.now(), Recipient: recipient, Event: workspec.EventInDoubt,
		Attrs: []workspec.Attr{{Key: "owner", Value: owner}},
		Text:  "its agent died after it had sent the message; it is sent again"}
}

// taken is the event that a recipient's lock is taken from a dead owner that may have
// delivered. An agent that settles doubts writes it before it overwrites the lock: if it
// dies, too, before it has found out, the doubt about the first owner must not vanish with
// that owner's lock.
func (d *Delivery) taken(recipient int64, owner int) workspec.Event {
	return workspec.Event{Time: d.agent.now(), Recipient: recipient, Event: workspec.EventUnlocked,
		Attrs: []workspec.Attr{{Key: "owner", Value: strconv.Itoa(owner)}}}
}

// record appends doubts, and logs those that are not to be settled.
func (d *Delivery) record(doubts []workspec.Event) error {
	if len(doubts) == 0 {
		return nil
	}
	lines := d.lines[:0]
	for i := range doubts {
		lines = workspec.AppendEvent(lines, &doubts[i])
		if doubts[i].Event != workspec.EventInDoubt {
			continue
		}
		d.agent.log().Warn("in-doubt", "id", d.ID(), "name", d.Job.Name, "host", d.Job.Host,
			"rcpt", d.address(doubts[i].Recipient), "owner", doubts[i].Get("owner"))
	}
	d.lines = lines[:0]
	// Crash: a doubt that is recorded and not sent again yet; the next agent records its
	// own.
	return d.file.Append(lines)
}

// InDoubt records that it is unknown whether a recipient with Sent has the message, so
// that it is sent again. Only with Agent.Settles; after an error the
// message must not be sent.
func (d *Delivery) InDoubt(r *Recipient) error {
	if r.Sent == nil {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	// Crash: recorded, and perhaps not sent again by us: the next agent checks again.
	if err := d.record([]workspec.Event{d.doubt(r.Offset, r.Sent.Get("owner"))}); err != nil {
		return fmt.Errorf("record the doubt: %w", err)
	}
	return nil
}

// answer is the answer to the scheduler about a recipient.
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
			// The text has no status unless it is a host's reply.
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

// number is the decimal number at the start of the i field.
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
