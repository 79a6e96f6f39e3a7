package main

import (
	"time"

	"zmailer/internal/run/human"
	"zmailer/internal/workspec"
)

// obey takes in what a person or a rule has ordered about a recipient.
func (r *recipient) obey(all *workspec.Orders, rcpt *workspec.Recipient, now time.Time) {
	o := all.Of(rcpt.Offset)
	if rcpt.Tag != workspec.TagLocked {
		switch all.Tag(rcpt) {
		case workspec.TagFailed:
			r.State = failed
		case workspec.TagOK:
			r.State = delivered
		case workspec.TagToDo:
			if r.State == failed {
				r.State = waiting
			}
		}
	}
	var why *workspec.Event
	switch {
	case r.State == delivered && o.Rerouted() != nil:
		r.State, why = rerouted, o.Rerouted()
	case r.State != waiting && r.State != noClause:
		return
	case o.Freeze != nil:
		r.State, r.Next, why = frozen, nil, o.Freeze
		if cause := o.Freeze.Get(workspec.KeyCause); cause != workspec.CausePerson {
			r.Cause = human.Clean(cause)
		}
	case o.Held(now):
		r.State, why = held, o.Hold
		if !o.Until.IsZero() {
			until := o.Until
			r.Until = &until
		}
	default:
		return
	}
	at := why.Time
	r.Ordered, r.By, r.Order, r.Reason = &at, human.Clean(why.Get(workspec.KeyWho)), human.Clean(why.Get("order")), human.Clean(oneLine(why.Text))
}
