package scheduler

import (
	"cmp"
	"fmt"
	"strconv"
	"time"

	"zmailer/internal/scheduler/thread"
	"zmailer/internal/status"
	"zmailer/internal/workspec"
)

// Outcome is what one attempt came to for one recipient, as far as the scheduler
// has to write it down.
type Outcome struct {
	Offset int64
	Result thread.Result
	Notary workspec.Notary
	Text   string // what was said
	// Of a deferral:
	Attempt   int       // number of this attempt, from 1
	Next      time.Time // of the next one
	HostTries int       // failures of the host in a row, if the whole thread waits
}

// code is the outcome's status, "X.0.0" of its kind if the agent gave none.
func (o *Outcome) code() status.Code {
	word := o.Notary.Status
	for i := range word {
		if word[i] == ' ' {
			word = word[:i]
			break
		}
	}
	if c, ok := status.Parse(word); ok {
		return c
	}
	switch o.Result {
	case thread.Delivered:
		return status.OK
	case thread.Failed:
		return status.Code{Class: 5}
	}
	return status.Code{Class: 4}
}

// Record writes down outcomes and makes them durable: deferrals with attempt and
// next time (A5), and the diagnostics of agents that leave them to the scheduler
// (words ok and error).
func (s *Spool) Record(name string, list []Outcome) error {
	f, err := s.open(name)
	if err != nil {
		return err
	}
	defer f.close()
	now := s.Now()
	return f.underLock(func() error {
		c := changes{sync: true}
		for i := range list {
			if err := s.recordOne(f, &list[i], &c, now); err != nil {
				return err
			}
		}
		if len(c.lines) == 0 && len(c.tags) == 0 {
			return nil
		}
		// Crash: see changes.write. The decision to wait is acted on when it is durable.
		return c.write(f)
	})
}

func (s *Spool) recordOne(f *opened, o *Outcome, c *changes, now time.Time) error {
	g, r := f.find(o.Offset)
	if r == nil {
		return fmt.Errorf("record outcome of %s: no recipient at byte %d", f.Name, o.Offset)
	}
	switch o.Result {
	case thread.Failed:
		if !f.diagnosed(r, kindFailed) {
			n := o.Notary
			n.Action = "failed"
			n.Status = o.code().String()
			n.Diagnostic = cmp.Or(n.Diagnostic, "x-local; "+lastLine(o.Text))
			c.diagnostic(g, r, now, n, o.Text)
		}
		c.final(f, r, workspec.TagFailed)
	case thread.Delivered:
		if wants(r.Notary, noDecode).success && !f.diagnosed(r, kindDelivered) {
			n := o.Notary
			n.Action = cmp.Or(n.Action, "delivered")
			n.Status = o.code().String()
			c.diagnostic(g, r, now, n, o.Text)
		}
		c.final(f, r, workspec.TagOK)
	default:
		if final(r.Tag) {
			return nil // somebody else knew better
		}
		e := workspec.DeferredEvent(now, o.Offset, o.Attempt, o.Next, o.code(), lastLine(o.Text))
		if o.HostTries > 0 {
			e.Attrs = append(e.Attrs, workspec.Attr{Key: attrHost, Value: strconv.Itoa(o.HostTries)})
		}
		c.event(e)
	}
	return nil
}

// final sets a recipient's final tag if it has none.
func (c *changes) final(f *opened, r *workspec.Recipient, t workspec.Tag) {
	if !final(r.Tag) {
		c.tag(f, r, t)
	}
}

// diagnosed tells whether a recipient has a diagnostic of a kind that is not
// reported yet.
func (f *opened) diagnosed(r *workspec.Recipient, kind string) bool {
	for i := range f.spec.Diagnostics {
		d := &f.spec.Diagnostics[i]
		if d.Recipient == r.Offset && !d.Reported && kindOf(d) == kind {
			return true
		}
	}
	return false
}

// Expire fails recipients that were tried for too long. said is the last answer
// that the file does not hold, "" if it does or there was none. It gives those that
// it could not fail because an agent holds them.
func (s *Spool) Expire(name string, offsets []int64, said string) (held []int64, err error) {
	f, err := s.open(name)
	if err != nil {
		return nil, err
	}
	defer f.close()
	now := s.Now()
	err = f.underLock(func() error {
		var c changes
		dead := s.deadLocks(f)
		last := f.deferrals()
		for _, off := range offsets {
			g, r := f.find(off)
			switch {
			case r == nil || final(r.Tag):
				continue
			case r.Tag == workspec.TagLocked && !dead[r.Owner]:
				held = append(held, off)
				continue
			}
			s.expireOne(f, g, r, &c, last[off], said, now)
		}
		if len(c.tags) == 0 {
			return nil
		}
		c.sync = true
		return c.write(f)
	})
	return held, err
}

// expireOne fails one recipient: 4.4.7 if its attempts failed, 5.4.7 if there was
// none (RFC 3463 §3.5).
func (s *Spool) expireOne(f *opened, g *workspec.Group, r *workspec.Recipient, c *changes, last *workspec.Event, said string, now time.Time) {
	code := status.Expired
	text := said
	if last != nil {
		text = last.Text
	}
	if text == "" {
		code.Class = 5
	}
	age := now.Sub(f.arrival()).Round(time.Second)
	why := fmt.Sprintf("not delivered in %v", age)
	n := failure(code, cmp.Or(text, why))
	c.event(workspec.Event{Time: now, Recipient: r.Offset, Event: workspec.EventExpired,
		Attrs: []workspec.Attr{{Key: "status", Value: code.String()}}, Text: text})
	if text != "" {
		why += "; last answer: " + text
	}
	c.diagnostic(g, r, now, n, why)
	c.tag(f, r, workspec.TagFailed)
	s.Log.Info("expired", "id", f.id, "name", f.Name, "rcpt", r.Address, "channel", r.Channel, "host", r.Host,
		"status", code.String(), "reply", text, "age", age)
}

// lastLine is the last line of a dialogue that says something, without the marks
// that tell who spoke.
func lastLine(text string) string {
	end := len(text)
	for end > 0 {
		start := end
		for start > 0 && text[start-1] != '\n' {
			start--
		}
		line := trimDialogue(text[start:end])
		if line != "" {
			return line
		}
		end = start - 1
	}
	return ""
}

func trimDialogue(line string) string {
	for len(line) > 0 && (line[0] == ' ' || line[0] == '\t') {
		line = line[1:]
	}
	for _, mark := range []string{"->> ", "<<- "} {
		if len(line) >= len(mark) && line[:len(mark)] == mark {
			line = line[len(mark):]
		}
	}
	for len(line) > 0 && (line[len(line)-1] == ' ' || line[len(line)-1] == '\t') {
		line = line[:len(line)-1]
	}
	return line
}
