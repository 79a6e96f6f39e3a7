package workspec

import (
	"bytes"
	"cmp"
	"iter"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"
)

// Orders is what the history says of recipients that an operator or a rule had wait, tried
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
	// Freeze is the event that has it wait for an operator; nil: none, or it was thawed.
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
	// KeyWho is who gave the order. An expired event with it is an operator's.
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

// orders recognizes an event that is an order.
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
		// Invalid times are ignored: held until it is released.
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

// holdTo returns the time of the hold up to another time.
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

// Of returns what holds for a recipient.
func (o *Orders) Of(recipient int64) Order {
	if o != nil {
		if r := o.of[recipient]; r != nil {
			return *r
		}
	}
	return Order{}
}

// Waits reports whether a recipient is not to be delivered to at a time, whatever its tag
// says: it is held or frozen, or what was decided about it is not in its tag yet.
func (o *Orders) Waits(r *Recipient, now time.Time) bool {
	if o == nil {
		return false
	}
	w := o.Of(r.Offset)
	return w.Held(now) || w.Freeze != nil || w.tag(TagToDo) != TagToDo
}

// Decided returns the tag that a recipient should have by all that operators have decided.
func Decided(m *Removal, o *Orders, r *Recipient) Tag {
	if tag := m.Tag(r); tag != r.Tag {
		return tag
	}
	return o.Tag(r)
}

// Tag returns the tag that a recipient should have by the orders, as Removal.Tag.
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

// Held recognizes a recipient that a hold has wait at a time.
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

// Hurried reports whether an order to try it now is younger than what is at a line.
func (r Order) Hurried(line int64) bool { return r.hurry > line }

// Fresh reports whether attempts count anew behind a line.
func (r Order) Fresh(line int64) bool { return r.fresh > line }

// Reopened recognizes a recipient that was opened again and has not failed since.
func (r Order) Reopened() bool { return r.reopen != nil && r.failedAt < r.reopen.LineOffset }

// Expired recognizes a recipient that an operator gave up.
func (r Order) Expired() bool { return r.expire != nil }

// Rerouted returns the event that has a copy for it routed, nil if there is none.
func (r Order) Rerouted() *Event { return r.reroute }

// Removal is what the history says of recipients that an operator took out (event
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

// Removal reads it from history and diagnostics. nil: no one was ever removed.
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

// Removed recognizes a recipient that was taken out and not put back. One that was
// delivered is none, whatever the history says, and neither is one that has failed
// since: an agent had it when it was taken out.
func (m *Removal) Removed(r *Recipient) bool {
	if m == nil || r.Tag == TagOK {
		return false
	}
	e := m.last[r.Offset]
	return e != nil && e.Event == EventRemoved && (r.Tag != TagFailed || m.failed[r.Offset] < e.LineOffset)
}

// Restored recognizes an open recipient that was put back.
func (m *Removal) Restored(r *Recipient) bool {
	if m == nil {
		return false
	}
	e := m.last[r.Offset]
	return e != nil && e.Event == EventRestored && m.Tag(r) == TagToDo
}

// Tag returns the tag that a recipient should have by the history: failed if it was
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

// OrderEvent returns the line of an order about recipients: its write is the decision. order
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

// UntilAttr returns a hold's end; the zero time: when it is released.
func UntilAttr(until time.Time) []Attr {
	if until.IsZero() {
		return nil
	}
	return []Attr{{keyUntil, strconv.FormatInt(until.UnixMilli(), 10)}}
}

// ReopenAttr says of a retry that its recipients had failed.
func ReopenAttr() Attr { return Attr{keyReopen, "failed"} }

// RemovedEvent returns the line that takes recipients out, or puts them back: its write is
// the decision. who is for the operator who reads the file.
func RemovedEvent(now time.Time, event, id string, recipients []int64, who string) Event {
	list := make([]string, len(recipients))
	for i, off := range recipients {
		list[i] = strconv.FormatInt(off, 10)
	}
	return Event{Time: now, Event: event, Text: who, Attrs: []Attr{{"id", id}, {keyRecipients, strings.Join(list, ",")}}}
}

// Recipients returns the offsets that an event is about: its own, or those of its key
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

// keyRecipients is the key of an event that is about several recipients. Its value is a
// list with commas between: the offset of a recipient, or A-B for all recipients whose r
// lines stand at A, at B, or between them. An event about 10,000 recipients of one host
// so takes no more room than an event about one of them.
const keyRecipients = "rcpts"

// All yields each recipient with its group.
func (s *Spec) All() iter.Seq2[*Group, *Recipient] {
	return func(yield func(*Group, *Recipient) bool) {
		for gi := range s.Groups {
			g := &s.Groups[gi]
			for ri := range g.Recipients {
				if !yield(g, &g.Recipients[ri]) {
					return
				}
			}
		}
	}
}

// About yields the recipients that an event is about, as far as they are in s, in the
// order of the event. It yields none for an event about the whole message.
func (s *Spec) About(e *Event) iter.Seq[*Recipient] {
	return func(yield func(*Recipient) bool) {
		if e.Recipient != 0 {
			if r := s.find(e.Recipient); r != nil {
				yield(r)
			}
			return
		}
		for word := range strings.SplitSeq(e.Get(keyRecipients), ",") {
			from, to, ok := parseRange(word)
			if !ok {
				continue
			}
			for r := range s.between(from, to) {
				if !yield(r) {
					return
				}
			}
		}
	}
}

// find returns the recipient at an offset, nil if there is none.
func (s *Spec) find(offset int64) *Recipient {
	for r := range s.between(offset, offset) {
		return r
	}
	return nil
}

// between yields the recipients whose offsets are from the one to the other.
func (s *Spec) between(from, to int64) iter.Seq[*Recipient] {
	return func(yield func(*Recipient) bool) {
		for gi, i := range s.placesBetween(from, to) {
			if !yield(&s.Groups[gi].Recipients[i]) {
				return
			}
		}
	}
}

// placesBetween is between, and yields the number of the group and that in it.
func (s *Spec) placesBetween(from, to int64) iter.Seq2[int, int] {
	return func(yield func(int, int) bool) {
		// Groups are in the order of the file, and so are their recipients.
		first := sort.Search(len(s.Groups), func(i int) bool {
			list := s.Groups[i].Recipients
			return s.Groups[i].Sender.Offset > from || len(list) > 0 && list[len(list)-1].Offset >= from
		})
		for gi := first; gi < len(s.Groups) && s.Groups[gi].Sender.Offset <= to; gi++ {
			list := s.Groups[gi].Recipients
			i, _ := slices.BinarySearchFunc(list, from, func(r Recipient, at int64) int { return cmp.Compare(r.Offset, at) })
			for ; i < len(list) && list[i].Offset <= to; i++ {
				if !yield(gi, i) {
					return
				}
			}
		}
	}
}

// numbering numbers the recipients of a specification in the file's order.
type numbering struct {
	s      *Spec
	before []int32 // how many are before each group
	n      int32   // of all
}

func (s *Spec) numbering() numbering {
	n := numbering{s: s, before: make([]int32, len(s.Groups))}
	for gi := range s.Groups {
		n.before[gi] = n.n
		n.n += int32(len(s.Groups[gi].Recipients))
	}
	return n
}

// about is Spec.About with the numbers of the recipients.
func (n *numbering) about(e *Event, fn func(r int32)) {
	among := func(from, to int64) {
		for gi, i := range n.s.placesBetween(from, to) {
			fn(n.before[gi] + int32(i))
		}
	}
	if e.Recipient != 0 {
		among(e.Recipient, e.Recipient)
		return
	}
	for word := range strings.SplitSeq(e.Get(keyRecipients), ",") {
		if from, to, ok := parseRange(word); ok {
			among(from, to)
		}
	}
}

// parseRange reads a word of the key rcpts.
func parseRange(word string) (from, to int64, ok bool) {
	first, last, ranges := strings.Cut(word, "-")
	from, err := strconv.ParseInt(first, 10, 64)
	if err != nil || from <= 0 {
		return 0, 0, false
	}
	if !ranges {
		return from, from, true
	}
	to, err = strconv.ParseInt(last, 10, 64)
	return from, to, err == nil && to >= from
}

// SetAbout has an event be about recipients of s, whose offsets ascend: about one by its
// offset, about several by the key rcpts, where those on adjacent lines of the file
// become a range.
func (s *Spec) SetAbout(e *Event, chosen []int64) {
	e.Recipient = 0
	e.Attrs = slices.DeleteFunc(slices.Clone(e.Attrs), func(a Attr) bool { return a.Key == keyRecipients })
	if len(chosen) == 1 {
		e.Recipient = chosen[0]
		return
	}
	e.Attrs = append(e.Attrs, Attr{keyRecipients, s.ranges(chosen)})
}

// ranges returns the value of the key rcpts.
func (s *Spec) ranges(chosen []int64) string {
	var b []byte
	last, n := int64(0), 0
	end := func() {
		if n > 1 {
			b = append(b, '-')
			b = strconv.AppendInt(b, last, 10)
		}
	}
	next := int64(0) // what follows last; 0: nothing, or a recipient that was left out
	for _, offset := range chosen {
		if n == 0 || offset != next {
			end()
			if len(b) > 0 {
				b = append(b, ',')
			}
			b = strconv.AppendInt(b, offset, 10)
			n = 0
		}
		last, n = offset, n+1
		next = s.behind(last)
	}
	end()
	return string(b)
}

// behind returns the offset of the recipient after another one; 0: there is none, or it was
// left out.
func (s *Spec) behind(offset int64) int64 {
	for r := range s.between(offset+1, 1<<62) {
		if _, apart := slices.BinarySearch(s.Apart, r.Offset); apart {
			return 0
		}
		return r.Offset
	}
	return 0
}

// hasRange reports whether the value of the key rcpts holds a range.
func hasRange(list []byte) bool { return bytes.IndexByte(list, '-') >= 0 }

// span is a time that does not make a recipient older.
type span struct{ from, to time.Time }

// length returns how much time spans cover together; where they overlap it counts once.
func length(spans []span) (sum time.Duration) {
	slices.SortFunc(spans, func(a, b span) int { return a.from.Compare(b.from) })
	var end time.Time
	for _, s := range spans {
		if s.from.Before(end) {
			s.from = end
		}
		if s.to.After(s.from) {
			sum += s.to.Sub(s.from)
			end = s.to
		}
	}
	return sum
}

// beside returns how much time spans cover that others do not.
func beside(spans, others []span) time.Duration {
	return length(slices.Concat(spans, others)) - length(slices.Clone(others))
}
