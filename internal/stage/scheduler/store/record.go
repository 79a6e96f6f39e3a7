package store

import (
	"cmp"
	"fmt"
	"strconv"
	"time"

	"zmailer/internal/mail/status"
	"zmailer/internal/postoffice"
	"zmailer/internal/stage/scheduler/conf"
	"zmailer/internal/stage/scheduler/events"
	"zmailer/internal/stage/scheduler/report"
	"zmailer/internal/stage/scheduler/thread"
	"zmailer/internal/workspec"
)

// Outcome is what one attempt came to for one recipient.
type Outcome = thread.Outcome

// Recorded is what record found.
type Recorded struct {
	ID postoffice.SpoolID // of the message as it is now, zero if its file is gone
	// Taken are the deferred recipients about which an operator decided while an agent had
	// them: they are not tried again now. Ended are the final ones of them.
	Taken, Ended map[int64]bool
	// Long: the history is to be summarised.
	Long bool
}

// recorder writes the outcomes of attempts into specifications, and gives up recipients.
type recorder struct{ *Env }

// Record writes down outcomes and makes them durable: deferrals with attempt and
// next time (A5), and the diagnostics of agents that leave them to the scheduler
// (words ok and error).
func (s *recorder) Record(name string, list []Outcome) (Recorded, error) {
	offsets := make([]int64, len(list))
	for i := range list {
		offsets[i] = list[i].Offset
	}
	f, err := s.openUnread(name, offsets)
	if err != nil {
		return Recorded{}, err
	}
	defer f.close()
	now := s.Now()
	rec := Recorded{ID: f.id}
	err = f.underLock(func() error {
		c := changes{sync: true}
		for i := range list {
			s.recordOne(f, &list[i], &c, now)
		}
		if f.orders != nil || f.removal != nil {
			s.giveBack(f, list, &c, &rec)
		}
		if len(c.lines) == 0 && len(c.tags) == 0 && len(c.deferrals) == 0 {
			return nil
		}
		// Crash: see changes.write. The decision to wait is acted on when it is durable.
		err := c.write(f)
		rec.Long = f.long(len(c.lines), len(list))
		return err
	})
	return rec, err
}

// giveBack applies decisions that operators made while an agent had the recipients.
func (s *recorder) giveBack(f *work, list []Outcome, c *changes, rec *Recorded) {
	rec.Taken, rec.Ended = map[int64]bool{}, map[int64]bool{}
	for i := range list {
		o := &list[i]
		if o.Result.Final() {
			continue
		}
		_, r := f.find(o.Offset)
		if r == nil || r.Tag != workspec.TagToDo {
			continue
		}
		switch tag := f.tagOf(r); {
		case tag == workspec.TagFailed:
			c.tag(f, r, tag)
			rec.Taken[o.Offset], rec.Ended[o.Offset] = true, true
		case tag != workspec.TagToDo || f.orders.Waits(r, s.Now()):
			rec.Taken[o.Offset] = true
		}
	}
}

func (s *recorder) recordOne(f *work, o *Outcome, c *changes, now time.Time) {
	g, r := f.find(o.Offset)
	if r == nil || o.Address != "" && o.Address != r.Address {
		// K10: the file was replaced since the attempt began. Its own tags count.
		s.Log.Warn("replaced", "id", f.id, "name", f.Name, "offset", o.Offset,
			"reason", "the specification was replaced and has no recipient at this offset; the outcome is dropped")
		return
	}
	switch o.Result {
	case thread.Failed:
		if !f.diagnosed(r, report.Failed) {
			n := o.Notary
			n.Action = "failed"
			n.Status = o.Code().String()
			n.Diagnostic = cmp.Or(n.Diagnostic, "x-local; "+thread.LastLine(o.Text))
			c.diagnostic(g, r, now, n, o.Text)
		}
		c.final(f, r, workspec.TagFailed)
	case thread.Delivered:
		if report.Requested(r.Notary, nil).Success && !f.diagnosed(r, report.Delivered) {
			n := o.Notary
			n.Action = cmp.Or(n.Action, "delivered")
			n.Status = o.Code().String()
			c.diagnostic(g, r, now, n, o.Text)
		}
		c.final(f, r, workspec.TagOK)
	default:
		if final(r.Tag) {
			return // another process has ended it
		}
		e := workspec.DeferredEvent(now, o.Offset, o.Attempt, o.Next, o.Code(), thread.LastLine(o.Text))
		if o.HostTries > 0 {
			e.Attrs = append(e.Attrs, workspec.Attr{Key: attrHost, Value: strconv.Itoa(o.HostTries)})
		}
		if report.IsReply(e.Text) {
			e.Attrs = append(e.Attrs, report.RemoteAttr(&o.Notary)...)
		}
		c.deferral(e)
	}
}

// final sets a recipient's final tag if it has none.
func (c *changes) final(f *work, r *workspec.Recipient, t workspec.Tag) {
	if !final(r.Tag) {
		c.tag(f, r, t)
	}
}

// diagnosed reports whether a recipient has a diagnostic of a kind that counts and is not
// reported yet.
func (f *work) diagnosed(r *workspec.Recipient, kind string) bool {
	since := f.reopenedAt()[r.Offset]
	for i := range f.spec.Diagnostics {
		d := &f.spec.Diagnostics[i]
		if d.Of == r.Offset && !d.Reported && report.KindOf(d) == kind && d.LineOffset > since {
			return true
		}
	}
	return false
}

// Expire gives up recipients that were tried for too long, by the setting onexpiry: they fail,
// are dropped or frozen (A6). said is the last reply of the host, if the file does not have it.
// held are recipients that an agent has, waiting those that wait for an operator.
func (s *recorder) Expire(name string, offsets []int64, said string) (held, waiting []int64, err error) {
	f, err := s.openFor(name, offsets)
	if err != nil {
		return nil, nil, err
	}
	defer f.close()
	if f.noMessage {
		return nil, nil, fmt.Errorf("expire %s: %w", name, ErrMessageGone)
	}
	now, young := s.Now(), false
	err = f.underLock(func() error {
		var c changes
		dead := s.deadLocks(f)
		last := lastDeferrals(f.spec)
		for _, off := range offsets {
			g, r := f.find(off)
			switch {
			case r == nil || final(r.Tag):
				continue
			case r.Tag == workspec.TagLocked && !dead[r.Owner]:
				held = append(held, off)
				continue
			case f.orders.Waits(r, now):
				waiting = append(waiting, off)
				continue
			case s.youngAgain(f, r, now):
				waiting, young = append(waiting, off), true
				continue
			}
			if !s.giveUp(f, g, r, &c, last[off], said, now) {
				waiting = append(waiting, off)
			}
		}
		if len(c.lines) == 0 {
			return nil
		}
		c.sync = true
		return c.write(f)
	})
	if err == nil && young {
		err = s.PostOffice.Queue.NoteChange(name) // it is to be read again
	}
	return held, waiting, err
}

// youngAgain reports whether an operator let a recipient's time begin again while an agent had
// it.
func (s *recorder) youngAgain(f *work, r *workspec.Recipient, now time.Time) bool {
	settings, _ := s.Unserved(r)
	if settings == nil || !f.orders.Of(r.Offset).Begun.After(f.arrival()) {
		return false
	}
	// A second: the engine counts in milliseconds.
	return settings.GiveUp() > 0 && f.begun(r, now).Add(settings.GiveUp()).Sub(now) > time.Second
}

// giveUp ends the attempts for one recipient by the setting onexpiry. It reports whether the
// recipient is final; else it waits for an operator.
func (s *recorder) giveUp(f *work, g *workspec.Group, r *workspec.Recipient, c *changes, last *workspec.Event, said string, now time.Time) bool {
	settings, _ := s.Unserved(r)
	if settings == nil || settings.OnExpiry != conf.ExpiryFreeze {
		s.expireOne(f, g, r, c, last, said, now, settings != nil && settings.OnExpiry == conf.ExpiryDrop)
		return true
	}
	text := said
	if last != nil {
		text = last.Text
	}
	age := Since(f.arrival(), now).Round(time.Second)
	c.event(workspec.OrderEvent(now, workspec.EventFrozen, f.id.String(), []int64{r.Offset}, "scheduler", "", text,
		workspec.Attr{Key: workspec.KeyCause, Value: workspec.CauseExpired}))
	s.emit(events.Froze, "id", f.id, "name", f.Name, "rcpt", r.Address, "channel", r.Channel, "host", r.Host,
		"cause", workspec.CauseExpired, "reply", text, "age", age)
	return false
}

// expireOne fails one recipient: with the status of the last reply of a remote host, as
// Postfix does, 4.4.7 if its attempts failed otherwise, 5.4.7 if there was none (RFC 3463
// section 3.5). drop: without a report.
func (s *recorder) expireOne(f *work, g *workspec.Group, r *workspec.Recipient, c *changes, last *workspec.Event, said string, now time.Time, drop bool) {
	code := status.Expired
	text, attempts := said, int64(0)
	if last != nil {
		text, attempts = last.Text, attrInt(last, "attempt")
	}
	if text == "" {
		code.Class = 5
	}
	age := Since(f.arrival(), now).Round(time.Second)
	why := fmt.Sprintf("not delivered in %v", age)
	n := failure(code, why)
	if text != "" {
		report.LastAnswer(&n, last, text)
	}
	c.event(workspec.Event{Time: now, Recipient: r.Offset, Event: workspec.EventExpired,
		Attrs: []workspec.Attr{{Key: "status", Value: code.String()}}, Text: text})
	if text != "" {
		why += "; last answer: " + text
	}
	c.diagnosticOf(g, r, now, n, why, drop)
	c.tag(f, r, workspec.TagFailed)
	s.Meters.expired(s.Conf, r.Channel, r.Host, Since(f.arrival(), now))
	s.emit(events.Expired, "id", f.id, "name", f.Name, "rcpt", r.Address, "channel", r.Channel, "host", r.Host,
		"status", code.String(), "reply", text, "attempt", attempts, "took", Since(f.arrival(), now), "age", age, "dropped", drop)
}
