package view

import (
	"time"

	"zmailer/internal/postoffice/suspension"
	"zmailer/internal/run/human"
)

// Suspension is an operator's decision that mail waits, or is not accepted.
type Suspension struct {
	Order     string     `json:"order"`
	Subject   string     `json:"subject"` // "host example.net", or "new mail"
	Accepting bool       `json:"accepting,omitempty"`
	Channel   string     `json:"channel,omitempty"`
	Host      string     `json:"host,omitempty"`
	Sender    string     `json:"sender,omitempty"`
	Source    string     `json:"source,omitempty"`
	By        string     `json:"by"`
	Reason    string     `json:"reason,omitempty"`
	Since     time.Time  `json:"since"`
	Until     *time.Time `json:"until,omitempty"`
}

// Suspensions returns suspensions as values for JSON.
func Suspensions(list []*suspension.Suspension) []Suspension {
	out := make([]Suspension, 0, len(list))
	for _, s := range list {
		x := Suspension{Order: string(s.Order), Subject: s.Subject(), Accepting: s.Accepting, Channel: s.Channel, Host: s.Host,
			Sender: s.Sender, Source: s.Source, By: s.Who, Reason: s.Reason, Since: s.Since}
		if !s.Until.IsZero() {
			x.Until = &s.Until
		}
		out = append(out, x)
	}
	return out
}

// Suspended returns the suspensions that are in force; none if they cannot be read: the
// scheduler raises an alarm about that.
func (s *Spool) Suspended() []*suspension.Suspension {
	if !s.suspensionsRead {
		s.suspensionsRead = true
		if list, err := suspension.Read(s.PO); err == nil {
			s.suspensions = list.Active(s.Now)
		}
	}
	return s.suspensions
}

// suspend has a recipient that waits wait for the end of a suspension; nil: there is none.
func (r *Recipient) suspend(x *suspension.Suspension) {
	if x == nil || r.State != Waiting {
		return
	}
	since := x.Since
	r.State, r.Ordered, r.By, r.Order, r.Reason = Suspended, &since, human.Clean(x.Who), string(x.Order), human.Clean(x.Reason)
	if !x.Until.IsZero() {
		until := x.Until
		r.Until = &until
	}
}

// suspension returns the one for which a recipient waits, nil if there is none. Which source a
// message has is known to the scheduler alone.
func (s *Spool) suspension(channel, host, sender string) *suspension.Suspension {
	if channel == ChannelHold {
		return nil // its host is a condition
	}
	for _, x := range s.Suspended() {
		if x.Source == "" && x.Thread(channel, host) && x.From(sender) {
			return x
		}
	}
	return nil
}
