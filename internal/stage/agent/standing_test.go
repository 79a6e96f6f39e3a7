package agent

import (
	"context"
	"testing"
	"time"

	"zmailer/internal/mail/status"
	"zmailer/internal/workspec"
)

// A deferral is the answer to "sent", and the next attempt sends without a question;
// but not where the message may stand in the store, or where an agent that looks there
// did not come to look.
func TestDoubtOutlivesADeferral(t *testing.T) {
	send := func(res Result) Deliverer {
		return deliverFunc(func(_ context.Context, d *Delivery) {
			if err := d.Sent(); err != nil {
				t.Error(err)
			}
			d.Done(d.Recipients[0], res)
		})
	}
	stands := later
	stands.Standing = true
	for name, c := range map[string]struct {
		attempts []Deliverer
		asked    bool // the attempt after them has a Sent
	}{
		"sent, deferred":                         {[]Deliverer{send(later)}, false},
		"sent, deferred, may stand there":        {[]Deliverer{send(stands)}, true},
		"then deferred before it was looked for": {[]Deliverer{send(stands), give(later), give(later)}, true},
		"then looked for and sent again":         {[]Deliverer{send(stands), send(later)}, false},
		"never sent":                             {[]Deliverer{give(stands), give(later)}, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSpool(t)
			s.agent.Settles = true
			name := s.queue(rcpt{"local", "h", "a@h", ""})
			for _, a := range c.attempts {
				s.do(name, "h", a)
				s.deferred(name)
			}
			var sent *workspec.Event
			s.do(name, "h", deliverFunc(func(_ context.Context, d *Delivery) {
				sent = d.Recipients[0].Sent
				d.Done(d.Recipients[0], ok)
			}))
			if (sent != nil) != c.asked {
				t.Errorf("got %+v, want one: %v", sent, c.asked)
			}
		})
	}
}

// deferred writes what the scheduler does after a deferral.
func (s *spool) deferred(name string) {
	s.Helper()
	spec, err := s.po.Queue.Open(name)
	if err != nil {
		s.Fatal(err)
	}
	defer spec.Close()
	e := workspec.DeferredEvent(testTime, s.spec(name).Groups[0].Recipients[0].Offset, 1, testTime.Add(time.Minute), status.SystemTrouble, "later")
	if err := spec.Append(workspec.AppendEvent(nil, &e)); err != nil {
		s.Fatal(err)
	}
}
