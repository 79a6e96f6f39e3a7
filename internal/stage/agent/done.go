package agent

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

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
		r.result = r.complete(res)
		if i > 0 && r.result.Reply == list[i-1].result.Reply {
			r.result.Reply = list[i-1].result.Reply // one string for all of a transaction
		}
		if r.result.Outcome == status.Delivered {
			delivered = append(delivered, r)
		}
	}
	d.markDelivered(delivered)
}

// markDelivered sets the final tags of delivered recipients, after diagnostics where the
// sender requested a success report (RFC 3461 §4.1). If these cannot be written the
// scheduler is asked to write them: a late report is better than a second message.
func (d *Delivery) markDelivered(list []*Recipient) {
	d.lines = d.lines[:0]
	for _, r := range list {
		r.answer, r.marked = taproto.OK3, true
		if r.owesSuccess() {
			r.answer = taproto.OK2
			d.lines = workspec.AppendDiagnostic(d.lines, d.agent.diagnostic(r))
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

// finish marks all recipients that are not marked yet.
func (d *Delivery) finish() {
	d.mu.Lock()
	defer d.mu.Unlock()
	delivered, others := 0, 0
	for _, r := range d.Recipients {
		switch {
		case !r.done:
			r.done = true
			r.result = r.complete(Result{Code: status.SystemTrouble, Reply: "the agent stopped before it had a result"})
		case r.result.Outcome == status.Delivered && !r.marked:
			d.markAgain(r)
		}
		if r.result.Outcome == status.Delivered {
			delivered++
		} else {
			others++
		}
	}
	if others > 0 {
		d.lost = d.agent.Lease.Check(0)
	}
	if d.lost != nil {
		// Crash: as after the death of this process. Another machine may serve the postoffice:
		// it finds our locks and the doubts. A deferral would hide these from it.
		d.agent.log().Error("lease-lost", "id", d.ID(), "name", d.Job.Name, "host", d.Job.Host, "delivered", delivered, "left", others, "reason", d.lost)
		return
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

// markFailed writes the diagnostics of all failed recipients, makes them durable,
// and then sets the tags. The same fsync makes a partial delivery durable: what was
// delivered must not be delivered again when the rest is tried.
func (d *Delivery) markFailed(partial bool) {
	d.lines = d.lines[:0]
	var failed []*Recipient
	for _, r := range d.Recipients {
		if r.result.Outcome == status.Failed {
			failed = append(failed, r)
			d.lines = workspec.AppendDiagnostic(d.lines, d.agent.diagnostic(r))
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
	// Crash: blank or the lock of a dead owner; both are open.
	if uerr := d.tags.set(r, workspec.TagToDo); uerr != nil {
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
	if err := d.record([]workspec.Event{d.agent.doubt(r.Offset, r.Sent.Get("owner"))}); err != nil {
		return fmt.Errorf("record the doubt: %w", err)
	}
	return nil
}
