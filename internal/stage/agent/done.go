package agent

import (
	"errors"
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

// markDelivered sets the final tags of delivered recipients, after diagnostics where
// the sender asked to hear of it (RFC 3461 §4.1). Without room for these the
// scheduler is asked to write them: rather late than the message twice.
func (d *Delivery) markDelivered(list []*Recipient) {
	d.lines = d.lines[:0]
	for _, r := range list {
		r.answer, r.marked = taproto.OK3, true
		if d.owesSuccess(r) {
			r.answer = taproto.OK2
			d.lines = workspec.AppendDiagnostic(d.lines, d.diagnostic(r))
		} else {
			r.result.Text = "" // nobody reads the dialogue, and there may be 100,000
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
	// Crash: the tag is in the file for everybody who reads it; a power loss may
	// bring back the lock of a dead owner, and the message is delivered twice.
	d.setAll(workspec.TagOK, list, func(r *Recipient, err error) {
		d.logFault(r, err)
		r.marked = false
	})
}

// owesSuccess tells whether the sender wants a success report that no other host
// has promised to write.
func (d *Delivery) owesSuccess(r *Recipient) bool {
	return r.result.Outcome == status.Delivered && !r.result.Relayed && r.AsksSuccess()
}

// AsksSuccess tells whether the sender wants to hear of a success (RFC 3461 §4.1).
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

// finish marks what is not marked yet.
func (d *Delivery) finish() {
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
	d.setAll(workspec.TagToDo, open, d.logFault)
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
	return d.file.SetTag(d.tagBytes(t), workspec.TagOffset(r.Offset))
}

func (d *Delivery) tagBytes(t workspec.Tag) []byte {
	if len(d.tag) == 0 || d.tag[0] != byte(t) {
		d.tag = workspec.TagBytes(d.Spec.Format, t)
	}
	return d.tag
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
		d.setAll(workspec.TagFailed, failed, d.notFailed)
		return
	}
	for _, r := range failed {
		d.notFailed(r, err)
	}
	if len(d.lines) == 0 {
		d.agent.log().Error("disk", "id", d.ID(), "name", d.Job.Name, "reason", err)
	}
}

// notFailed gives a recipient back whose failure could not be recorded.
func (d *Delivery) notFailed(r *Recipient, err error) {
	d.fault(r, err)
	if uerr := d.unlock(r); uerr != nil {
		d.logFault(r, uerr)
	}
}

// fault makes a result that could not be written a deferral: a final answer to the
// scheduler must not be more than what the file says.
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
