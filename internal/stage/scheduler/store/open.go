package store

import (
	"strings"
	"time"

	"zmailer/internal/postoffice"
	"zmailer/internal/stage/scheduler/builtin"
	"zmailer/internal/workspec"
)

// OpenRecipient is a recipient that is not final, for those who ask what waits.
type OpenRecipient struct {
	Channel, Host, Address string
	Sender                 string // "": the null sender
	Offset                 int64
	Tries                  int
	Next                   time.Time
	Last                   time.Time // of the last attempt
	Answer, Status         string    // of the last deferral
	State                  string    // queued, waiting, running, unserved, held, frozen
	Until                  time.Time // end of a hold
	Cause                  string    // of a freeze
	Accepted, Expires      time.Time
}

// OpenRecipients reads the open recipients of the message with an ID; channel not "": those
// of one thread. There are none if the file is gone, cannot be read, or is another message's.
func (s *Store) OpenRecipients(name string, id postoffice.SpoolID, channel, host string) (list []OpenRecipient) {
	f, err := s.open(name)
	if err != nil {
		return nil
	}
	defer f.close()
	if f.id != id && !f.noMessage {
		return nil
	}
	now := s.Now()
	last, orders := lastDeferrals(f.spec), f.spec.Orders()
	f.recipients(func(g *workspec.Group, r *workspec.Recipient) {
		if final(f.removal.Tag(r)) || channel != "" && (r.Channel != channel || !strings.EqualFold(r.Host, host)) {
			return
		}
		w := OpenRecipient{Channel: strings.Clone(r.Channel), Host: strings.Clone(r.Host), Address: strings.Clone(r.Address), Sender: strings.Clone(g.Sender.Address),
			Offset: r.Offset, Accepted: f.arrival(), State: "queued"}
		if g.Sender.Channel == builtin.Error {
			w.Sender = ""
		}
		settings, unserved := s.Unserved(r)
		if settings != nil && settings.GiveUp() > 0 {
			w.Expires = f.arrival().Add(f.away() + settings.GiveUp())
		}
		if e := last[r.Offset]; e != nil {
			w.Tries, w.Next, w.Last = int(attrInt(e, "attempt")), nextOf(e, now), e.Time
			w.Answer, w.Status, w.State = strings.Clone(e.Text), strings.Clone(e.Get("status")), "waiting"
		}
		switch {
		case r.Tag == workspec.TagLocked:
			w.State = "running"
		case unserved:
			w.State = "unserved"
		}
		switch o := orders.Of(r.Offset); {
		case o.Freeze != nil:
			w.State, w.Cause, w.Expires = "frozen", strings.Clone(o.Freeze.Get(workspec.KeyCause)), time.Time{}
		case o.Held(now):
			w.State, w.Until = "held", o.Until
		}
		list = append(list, w)
	})
	return list
}
