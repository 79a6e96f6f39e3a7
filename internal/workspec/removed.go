package workspec

import (
	"strconv"
	"strings"
	"time"
)

// Removal is what the history says of recipients that a person took out (event
// removed) and maybe put back (event restored). The event is the decision; the tag
// follows it, at once or when the scheduler reads the file after a crash.
type Removal struct {
	ID   string    // spool ID, as the last event has it
	Time time.Time // of the last event
	// Away is how long the message was out, over all removals that were taken back:
	// that time does not make it older.
	Away time.Duration

	out    []span           // the times that Away is the sum of
	last   map[int64]*Event // by recipient
	failed map[int64]int64  // line of the last diagnostic that says failed
}

// Removal reads it from history and diagnostics. nil: nobody was ever removed.
func (s *Spec) Removal() *Removal {
	var m *Removal
	var out time.Time
	for i := range s.History {
		e := &s.History[i]
		if m != nil && reopens(e) {
			// It has failed since, and this is what counts now.
			for _, off := range e.Recipients() {
				delete(m.last, off)
			}
		}
		if e.Event != EventRemoved && e.Event != EventRestored {
			continue
		}
		if m == nil {
			m = &Removal{last: map[int64]*Event{}}
		}
		for _, off := range e.Recipients() {
			m.last[off] = e
		}
		m.ID, m.Time = e.Get("id"), e.Time
		switch {
		case e.Event == EventRemoved && out.IsZero():
			out = e.Time
		case e.Event == EventRestored && !out.IsZero():
			m.Away += max(e.Time.Sub(out), 0)
			m.out = append(m.out, span{out, e.Time})
			out = time.Time{}
		}
	}
	if m == nil {
		return nil
	}
	m.failed = map[int64]int64{}
	for i := range s.Diagnostics {
		if d := &s.Diagnostics[i]; d.Failed() {
			m.failed[d.Of] = d.LineOffset
		}
	}
	return m
}

// Removed tells a recipient that was taken out and not put back. One that was
// delivered is none, whatever the history says, and neither is one that has failed
// since: an agent had it when it was taken out.
func (m *Removal) Removed(r *Recipient) bool {
	if m == nil || r.Tag == TagOK {
		return false
	}
	e := m.last[r.Offset]
	return e != nil && e.Event == EventRemoved && (r.Tag != TagFailed || m.failed[r.Offset] < e.LineOffset)
}

// Restored tells an open recipient that was put back.
func (m *Removal) Restored(r *Recipient) bool {
	if m == nil {
		return false
	}
	e := m.last[r.Offset]
	return e != nil && e.Event == EventRestored && m.Tag(r) == TagToDo
}

// Tag is the tag that a recipient should have by the history: failed if it was
// removed, to do if it was put back and has not failed since; else the one it has. A
// lock is left to whoever knows if its owner lives.
func (m *Removal) Tag(r *Recipient) Tag {
	if m == nil {
		return r.Tag
	}
	e := m.last[r.Offset]
	switch {
	case e == nil:
	case e.Event == EventRemoved && r.Tag == TagToDo:
		return TagFailed
	case e.Event == EventRestored && r.Tag == TagFailed && m.failed[r.Offset] < e.LineOffset:
		return TagToDo
	}
	return r.Tag
}

// OrderEvent is the line of an order about recipients: its write is the decision. order
// is the order of many messages that it is part of, "" if none.
func OrderEvent(now time.Time, event, id string, recipients []int64, who, order, reason string, more ...Attr) Event {
	e := RemovedEvent(now, event, id, recipients, reason)
	if who != "" {
		e.Attrs = append(e.Attrs, Attr{KeyWho, who})
	}
	if order != "" {
		e.Attrs = append(e.Attrs, Attr{"order", order})
	}
	e.Attrs = append(e.Attrs, more...)
	return e
}

// UntilAttr is a hold's end; the zero time: when it is released.
func UntilAttr(until time.Time) []Attr {
	if until.IsZero() {
		return nil
	}
	return []Attr{{keyUntil, strconv.FormatInt(until.UnixMilli(), 10)}}
}

// ReopenAttr says of a retry that its recipients had failed.
func ReopenAttr() Attr { return Attr{keyReopen, "failed"} }

// RemovedEvent is the line that takes recipients out, or puts them back: its write is
// the decision. who is for the person who reads the file.
func RemovedEvent(now time.Time, event, id string, recipients []int64, who string) Event {
	list := make([]string, len(recipients))
	for i, off := range recipients {
		list[i] = strconv.FormatInt(off, 10)
	}
	return Event{Time: now, Event: event, Text: who, Attrs: []Attr{{"id", id}, {keyRecipients, strings.Join(list, ",")}}}
}

// Recipients are the offsets that an event is about: its own, or those of its key
// rcpts. It is for events that list each of them, as those of orders and reports do; see
// Spec.About for those that may have a range.
func (e *Event) Recipients() []int64 {
	if e.Recipient != 0 {
		return []int64{e.Recipient}
	}
	var list []int64
	for word := range strings.SplitSeq(e.Get(keyRecipients), ",") {
		if n, err := strconv.ParseInt(word, 10, 64); err == nil {
			list = append(list, n)
		}
	}
	return list
}
