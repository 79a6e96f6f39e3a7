package workspec

import (
	"slices"
	"strconv"
	"time"
)

// Orders is what the history says of recipients that a person or a rule had wait, tried
// again, given up or routed again. The event is the decision; where a tag has to follow
// it, that is done at once, when an agent gives the recipient back, or when the scheduler
// reads the file after a crash.
type Orders struct{ of map[int64]*Order }

// Order is what holds for one recipient. The zero value: nothing was ever ordered.
type Order struct {
	// Hold is the event that has it wait; nil: none, or it was released.
	Hold *Event
	// Until is when the hold ends by itself; zero: when it is released.
	Until time.Time
	// Freeze is the event that has it wait for a person; nil: none, or it was thawed.
	Freeze *Event
	// Begun is when its time began anew, by a thaw or because it was opened again after
	// a failure; zero: with the message's arrival.
	Begun time.Time

	held     []span // holds that are over, since Begun
	hurry    int64  // line of the last order to try it now
	fresh    int64  // line from which attempts count
	expire   *Event // it was given up by an operator
	reopen   *Event // it was failed and is open again
	reroute  *Event // a copy for it went to the router
	failedAt int64  // line of its last diagnostic that says failed
}

// Keys of orders beside id and rcpts.
const (
	keyUntil  = "until"  // of hold: milliseconds since 1970
	keyReopen = "reopen" // of retry: the recipients have failed and are opened again
	// KeyWho is who gave the order. An expired event with it is a person's.
	KeyWho = "who"
	// KeyFile is the name in public/ of what a report or rerouted event has prepared.
	KeyFile = "file"
	// KeyCause is why recipients are frozen: CauseExpired, CausePerson or a rule's name.
	KeyCause = "cause"
)

// Causes of EventFrozen.
const (
	CauseExpired = "expired" // at the end of the attempts (onexpiry=freeze)
	CausePerson  = "person"
)

// Orders reads them from the history. nil: there were none.
func (s *Spec) Orders() *Orders {
	var o *Orders
	for i := range s.History {
		e := &s.History[i]
		if e.Event == EventRemoved {
			o.end(e)
		}
		if !orders(e) {
			continue
		}
		if o == nil {
			o = &Orders{of: map[int64]*Order{}}
		}
		for _, off := range e.Recipients() {
			r := o.of[off]
			if r == nil {
				r = &Order{}
				o.of[off] = r
			}
			r.take(e)
		}
	}
	if o == nil {
		return nil
	}
	for i := range s.Diagnostics {
		d := &s.Diagnostics[i]
		if r := o.of[d.Of]; r != nil && d.Failed() {
			r.failedAt = d.LineOffset
		}
	}
	return o
}

// orders tells an event that is an order.
func orders(e *Event) bool {
	switch e.Event {
	case EventHold, EventRelease, EventFrozen, EventThawed, EventRetry:
		return true
	case EventRerouted:
		return e.Get(KeyFile) != ""
	case EventExpired:
		return e.Get(KeyWho) != "" // else the scheduler's, which sets the tag with it
	}
	return false
}

// Reopens reports whether an event opens recipients again that had failed or were removed:
// what the history says of their end before it is void.
func Reopens(e *Event) bool { return reopens(e) || e.Event == EventRestored }

// reopens reports whether an order opens recipients again that have failed.
func reopens(e *Event) bool { return e.Event == EventRetry && e.Get(keyReopen) != "" }

// end takes in a removal: what was opened again is no longer so.
func (o *Orders) end(e *Event) {
	if o == nil {
		return
	}
	for _, off := range e.Recipients() {
		if r := o.of[off]; r != nil {
			r.reopen = nil
		}
	}
}

// take brings in one more event.
func (r *Order) take(e *Event) {
	switch e.Event {
	case EventHold:
		r.release(e.Time)
		r.Hold, r.Until = e, time.Time{}
		// What is no time is none: held until somebody says otherwise.
		if ms, err := strconv.ParseInt(e.Get(keyUntil), 10, 64); err == nil && ms > 0 {
			r.Until = time.UnixMilli(ms)
		}
	case EventRelease:
		r.release(e.Time)
	case EventFrozen:
		r.Freeze = e
	case EventThawed:
		if r.Freeze != nil {
			r.begin(e)
		}
	case EventRetry:
		r.hurry = e.LineOffset
		if reopens(e) {
			r.begin(e)
			r.reopen, r.expire = e, nil
		}
	case EventExpired:
		r.expire, r.reopen = e, nil
	case EventRerouted:
		r.reroute = e
	}
}

// release ends a hold.
func (r *Order) release(at time.Time) {
	if r.Hold != nil {
		r.held = append(r.held, r.holdTo(at))
		r.Hold, r.Until = nil, time.Time{}
	}
}

// holdTo is the time of the hold up to another time.
func (r Order) holdTo(at time.Time) span {
	if !r.Until.IsZero() && r.Until.Before(at) {
		at = r.Until
	}
	return span{r.Hold.Time, at}
}

// begin begins its time anew.
func (r *Order) begin(e *Event) {
	r.Freeze, r.Begun, r.held = nil, e.Time, nil
	r.hurry, r.fresh = e.LineOffset, e.LineOffset
}

// Of is what holds for a recipient.
func (o *Orders) Of(recipient int64) Order {
	if o != nil {
		if r := o.of[recipient]; r != nil {
			return *r
		}
	}
	return Order{}
}

// Waits tells whether a recipient is not to be delivered to at a time, whatever its tag
// says: it is held or frozen, or what was decided about it is not in its tag yet.
func (o *Orders) Waits(r *Recipient, now time.Time) bool {
	if o == nil {
		return false
	}
	w := o.Of(r.Offset)
	return w.Held(now) || w.Freeze != nil || w.tag(TagToDo) != TagToDo
}

// Decided is the tag that a recipient should have by all that persons have decided.
func Decided(m *Removal, o *Orders, r *Recipient) Tag {
	if tag := m.Tag(r); tag != r.Tag {
		return tag
	}
	return o.Tag(r)
}

// Tag is the tag that a recipient should have by the orders, as Removal.Tag.
func (o *Orders) Tag(r *Recipient) Tag {
	if o == nil {
		return r.Tag
	}
	return o.Of(r.Offset).tag(r.Tag)
}

func (r Order) tag(t Tag) Tag {
	switch {
	case t == TagToDo && r.reroute != nil:
		return TagOK
	case t == TagToDo && r.expire != nil:
		return TagFailed
	case t == TagFailed && r.reopen != nil && r.failedAt < r.reopen.LineOffset:
		return TagToDo
	}
	return t
}

// Held tells a recipient that a hold has wait at a time.
func (r Order) Held(now time.Time) bool {
	return r.Hold != nil && (r.Until.IsZero() || r.Until.After(now))
}

// Away returns how much of the time since the message's arrival does not make the recipient
// older, beside m.Away, the time in which it was removed. m may be nil.
func (r Order) Away(arrival, now time.Time, m *Removal) time.Duration {
	spans := slices.Clone(r.held)
	if r.Hold != nil {
		spans = append(spans, r.holdTo(now))
	}
	if r.Begun.After(arrival) {
		spans = append(spans, span{arrival, r.Begun})
	}
	if m == nil {
		return length(spans)
	}
	return beside(spans, m.out)
}

// Hurried tells whether an order to try it now is younger than what stands at a line.
func (r Order) Hurried(line int64) bool { return r.hurry > line }

// Fresh tells whether attempts count anew behind a line.
func (r Order) Fresh(line int64) bool { return r.fresh > line }

// Reopened tells a recipient that was opened again and has not failed since.
func (r Order) Reopened() bool { return r.reopen != nil && r.failedAt < r.reopen.LineOffset }

// Expired tells a recipient that a person gave up.
func (r Order) Expired() bool { return r.expire != nil }

// Rerouted is the event that has a copy for it routed, nil if there is none.
func (r Order) Rerouted() *Event { return r.reroute }
