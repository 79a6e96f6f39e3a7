package agent

import (
	"errors"
	"strconv"
	"strings"

	"zmailer/internal/dsn"
	"zmailer/internal/postoffice"
	"zmailer/internal/status"
	"zmailer/internal/taproto"
	"zmailer/internal/workspec"
)

// Done records a recipient's result. A success is marked in the file at once; a
// failure's diagnostic and tag are written when Deliver has returned, all of a
// job's with one fsync. A recipient has one result: a second one is logged and
// dropped.
func (d *Delivery) Done(r *Recipient, res Result) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if r.done {
		d.agent.log().Error("second-result", "id", d.ID, "rcpt", r.Address,
			"status", res.Code, "reply", res.Reply, "first", r.result.Reply)
		return
	}
	r.done = true
	r.result = d.complete(r, res)
	if r.result.Outcome == status.Delivered {
		d.markDelivered(r)
	}
}

// complete fills in what a Deliverer left out.
func (d *Delivery) complete(r *Recipient, res Result) Result {
	switch res.Outcome {
	case status.Delivered:
		res.Code.Class = 2
	case status.Failed:
		res.Code.Class = 5
	default:
		res.Code.Class = 4
	}
	res.Reply = oneLine(res.Reply)
	if res.Reply == "" {
		res.Reply = oneLine(res.Text)
	}
	if res.Action == "" {
		res.Action = dsn.Delivered
		if r.Channel == "smtp" || r.Channel == "smtpx" {
			res.Action = dsn.Relayed
		}
	}
	return res
}

// markDelivered sets the final tag of a delivered recipient, after a diagnostic if
// the sender asked to hear of it (RFC 3461 §4.1). Without room for that the
// scheduler is asked to write it: rather late than the message twice.
func (d *Delivery) markDelivered(r *Recipient) {
	r.answer = taproto.OK3
	if d.owesSuccess(r) {
		r.answer = taproto.OK2
		d.lines = workspec.AppendDiagnostic(d.lines[:0], d.diagnostic(r))
		// Crash: delivered, its tag still the lock's: in doubt.
		if err := d.file.Append(d.lines); err != nil {
			r.answer = taproto.OK
			d.logFault(r, err)
		}
	}
	// Crash: the tag is in the file for everybody who reads it; a power loss may
	// bring back the lock of a dead owner, and the message is delivered twice.
	err := d.setTag(r, workspec.TagOK)
	if err != nil {
		d.logFault(r, err)
	}
	r.marked = err == nil
	if r.answer == taproto.OK3 {
		r.result.Text = "" // nobody reads the dialogue, and there may be 100,000
	}
}

// owesSuccess tells whether the sender wants a success report that no other host
// has promised to write.
func (d *Delivery) owesSuccess(r *Recipient) bool {
	if r.result.Outcome != status.Delivered || r.result.Relayed {
		return false
	}
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

// finish marks what is not marked yet and gives the answers.
func (d *Delivery) finish() []taproto.Line {
	d.mu.Lock()
	defer d.mu.Unlock()
	delivered, others := 0, 0
	for _, r := range d.Recipients {
		switch {
		case !r.done:
			r.done = true
			r.result = d.complete(r, Result{Code: status.SystemTrouble, Reply: "the agent broke off"})
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
	lines := make([]taproto.Line, 0, len(d.Recipients)+1)
	for _, r := range d.Recipients {
		lines = append(lines, taproto.Line{Kind: taproto.LineAnswer, Answer: d.answer(r)})
	}
	return lines
}

// markAgain tries a delivered recipient's tag once more. Without it the lock stays, and
// the scheduler is asked to set the tag, as one that keeps trying: a deferral would
// send the message twice. Should it die before, who takes the lock over knows that the
// message may have been sent.
func (d *Delivery) markAgain(r *Recipient) {
	if err := d.setTag(r, workspec.TagOK); err != nil {
		d.logFault(r, err)
		r.answer = taproto.OK
	}
	r.marked = true
}

// markDeferred gives the locks of deferred recipients back.
func (d *Delivery) markDeferred() {
	for _, r := range d.Recipients {
		if r.result.Outcome != status.Deferred || r.marked {
			continue
		}
		d.markOpen(r)
		if err := d.unlock(r); err != nil {
			d.logFault(r, err)
		}
		r.marked = true
	}
}

// markOpen has the doubt about a recipient outlive its deferral, which the scheduler
// writes next and which otherwise is the answer to a "sent": the lock is given back
// like that of a dead agent, since it is not known whether the message is there.
func (d *Delivery) markOpen(r *Recipient) {
	owner := ""
	switch {
	case r.resent && r.result.Standing:
		owner = strconv.Itoa(d.agent.Owner.Number())
	case !r.resent && r.Sent != nil && d.agent.Settles:
		owner = r.Sent.Get("owner") // the Deliverer did not get so far as to find out
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

// setTag writes a tag that is no lock.
func (d *Delivery) setTag(r *Recipient, t workspec.Tag) error {
	if len(d.tag) == 0 || d.tag[0] != byte(t) {
		d.tag = workspec.TagBytes(d.Spec.Format, t)
	}
	return d.file.SetTag(d.tag, workspec.TagOffset(r.Offset))
}

func (d *Delivery) unlock(r *Recipient) error {
	// Crash: blank or the lock of a dead owner; both are open.
	return d.setTag(r, workspec.TagToDo)
}

// markFailed writes the diagnostics of all failed recipients, makes them durable,
// and then sets the tags. The same fsync makes a partial delivery durable: what was
// delivered must not be delivered again when the rest is tried.
func (d *Delivery) markFailed(partial bool) {
	d.lines = d.lines[:0]
	for _, r := range d.Recipients {
		if r.result.Outcome == status.Failed {
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
	for _, r := range d.Recipients {
		if r.result.Outcome != status.Failed {
			continue
		}
		if err == nil {
			err = d.setTag(r, workspec.TagFailed)
		}
		if err == nil {
			continue
		}
		d.fault(r, err)
		if uerr := d.unlock(r); uerr != nil {
			d.logFault(r, uerr)
		}
	}
	if err != nil && len(d.lines) == 0 {
		d.agent.log().Error("disk", "id", d.ID, "name", d.Job.Name, "reason", err)
	}
}

// fault makes a result that could not be written a deferral: a final answer to the
// scheduler must not be more than what the file says.
func (d *Delivery) fault(r *Recipient, err error) {
	d.logFault(r, err)
	was := r.result
	r.result = Result{Outcome: status.Deferred, Code: status.SystemTrouble, Action: was.Action,
		Reply: oneLine("could not record that it was " + was.Outcome.String() + ": " + err.Error())}
}

func (d *Delivery) logFault(r *Recipient, err error) {
	d.agent.log().Error("disk", "id", d.ID, "name", d.Job.Name, "rcpt", r.Address,
		"result", r.result.Outcome, "reply", r.result.Reply, "reason", err)
}
