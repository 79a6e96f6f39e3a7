package view

import (
	"time"

	"zmailer/internal/run/human"
	"zmailer/internal/workspec"
)

// obey applies the orders of operators and rules to a recipient.
func (r *Recipient) obey(all *workspec.Orders, rcpt *workspec.Recipient, now time.Time) {
	o := all.Of(rcpt.Offset)
	if rcpt.Tag != workspec.TagLocked {
		switch all.Tag(rcpt) {
		case workspec.TagFailed:
			r.State = Failed
		case workspec.TagOK:
			r.State = Delivered
		case workspec.TagToDo:
			if r.State == Failed {
				r.State = Waiting
			}
		}
	}
	var why *workspec.Event
	switch {
	case r.State == Delivered && o.Rerouted() != nil:
		r.State, why = Rerouted, o.Rerouted()
	case r.State != Waiting && r.State != Unserved:
		return
	case o.Freeze != nil:
		r.State, r.Next, why = Frozen, nil, o.Freeze
		if cause := o.Freeze.Get(workspec.KeyCause); cause != workspec.CausePerson {
			r.Cause = human.Clean(cause)
		}
	case o.Held(now):
		r.State, why = Held, o.Hold
		if !o.Until.IsZero() {
			until := o.Until
			r.Until = &until
		}
	default:
		return
	}
	at := why.Time
	r.Ordered, r.By, r.Order, r.Reason = &at, human.Clean(why.Get(workspec.KeyWho)), human.Clean(why.Get("order")), human.Clean(OneLine(why.Text))
}
