package workspec

import (
	"reflect"
	"slices"
)

// tellsTheSame reports whether another history of the same file has the same content that programs act on:
// of each recipient its last deferral, what a header or minage wished, and whether it is in
// doubt; and every diagnostic, order and other event.
func (s *Spec) tellsTheSame(other *Spec) bool {
	if s.ZOffset != other.ZOffset || !other.Complete || !reflect.DeepEqual(s.Groups, other.Groups) || len(s.Diagnostics) != len(other.Diagnostics) {
		return false
	}
	for i := range s.Diagnostics {
		a, b := s.Diagnostics[i], other.Diagnostics[i]
		b.LineOffset = a.LineOffset
		if a != b {
			return false
		}
	}
	a, b := s.told(), other.told()
	same := func(x, y *Event) bool { return x == y || x != nil && y != nil && sameLine(x, y) }
	if !slices.EqualFunc(a.others, b.others, same) || !slices.EqualFunc(a.last, b.last, func(x, y deferral) bool {
		return x.behind == y.behind && (x.event == nil) == (y.event == nil)
	}) {
		return false
	}
	// Many recipients have one event.
	alike := map[[2]*Event]bool{}
	for i := range a.last {
		x, y := a.last[i].event, b.last[i].event
		pair := [2]*Event{x, y}
		if x == nil || i > 0 && pair == [2]*Event{a.last[i-1].event, b.last[i-1].event} || alike[pair] {
			continue
		}
		if !x.Time.Equal(y.Time) || !sameDeferral(x, y) {
			return false
		}
		alike[pair] = true
	}
	before, after := s.Doubts(), other.Doubts()
	for gi := range s.Groups {
		for ri := range s.Groups[gi].Recipients {
			if !sameDoubt(&before, &after, &s.Groups[gi].Recipients[ri]) {
				return false
			}
		}
	}
	return true
}

// deferral is a recipient's last one, and how many orders and the like stand before it.
type deferral struct {
	event  *Event
	behind int
}

// told is what programs go by.
type told struct {
	last   []deferral // of each recipient, in the file's order
	others []*Event
}

func (s *Spec) told() told {
	n := s.numbering()
	t := told{last: make([]deferral, n.n)}
	for i := range s.History {
		e := &s.History[i]
		switch e.Event {
		case EventSent, EventUnlocked, EventInDoubt, EventSummarised, EventSuperseded:
		case EventDeferred:
			n.about(e, func(r int32) { t.last[r] = deferral{e, len(t.others)} })
		default:
			t.others = append(t.others, e)
		}
	}
	return t
}

func sameLine(a, b *Event) bool {
	return a.Time.Equal(b.Time) && a.Recipient == b.Recipient && a.Event == b.Event && a.Text == b.Text && slices.Equal(a.Attrs, b.Attrs)
}
