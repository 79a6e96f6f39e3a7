package workspec

import (
	"slices"
	"strconv"
)

// Doubts are the recipients whose message may have been delivered by an agent that did not
// report how it ended.
//
// A sent event that lists its recipients is about these. One that lists none is about all
// recipients that its owner had locked at that time, and the history does not name them:
// it counts for a recipient whose lock is its owner's now, or was recorded as taken from
// its owner. Agents for several hosts of one message may write such events at the same
// time, so one of them never replaces that of another owner.
type Doubts struct {
	one     map[int64]doubt  // recipients with events of their own
	rest    doubt            // all others
	general map[int]position // by owner, its last sent event that lists no recipient
	count   int              // events so far
}

// doubt is what the history reports of a recipient.
type doubt struct {
	sent  position // the last sent event that lists the recipient
	owner int      // of that event
	since int      // sent events that list no recipient count if they come after this event
	// taken are the owners that sent, maybe to this recipient, and whose lock was taken
	// from them or given back without an answer.
	taken []taken
}

// position is an event and its number in the history, from 1. The zero value: none.
type position struct {
	event *Event
	at    int
}

// taken is the end of a lock without an answer.
type taken struct {
	owner int
	sent  *Event // its owner's sent event at that time
	at    int    // number of the unlocked event
}

// Doubts reads them from the history, in one pass.
func (s *Spec) Doubts() Doubts {
	d := Doubts{}
	if len(s.History) == 0 {
		return d
	}
	d.one = map[int64]doubt{}
	for i := range s.History {
		d.next(s, &s.History[i], nil)
	}
	return d
}

// next takes in the next event of the history. It calls decided, which may be nil, for each
// recipient for which this event makes all earlier ones void.
func (d *Doubts) next(s *Spec, e *Event, decided func(recipient int64)) {
	d.count++
	settle := func(recipient int64, now doubt) {
		now.since = d.count
		d.one[recipient] = now
		if decided != nil {
			decided(recipient)
		}
	}
	switch e.Event {
	case EventSent:
		owner := ownerOf(e)
		if e.listsNone() {
			if d.general == nil {
				d.general = map[int]position{}
			}
			d.general[owner] = position{e, d.count}
			return
		}
		for r := range s.About(e) {
			settle(r.Offset, doubt{sent: position{e, d.count}, owner: owner})
		}
	case EventUnlocked:
		d.release(e.Recipient, ownerOf(e))
	case EventDeferred:
		// An answer came, unless the lock was taken from an agent that gave none.
		for r := range s.About(e) {
			switch is := d.of(r.Offset); {
			case len(is.taken) > 0:
			case is.sent.event != nil || len(d.general) > 0:
				settle(r.Offset, doubt{})
			case decided != nil:
				decided(r.Offset) // nothing is kept of one that is not in doubt, as most are
			}
		}
	case EventInDoubt:
		for r := range s.About(e) {
			settle(r.Offset, doubt{})
		}
	}
}

// ownerOf returns the owner that an event names, 0 if it names none.
func ownerOf(e *Event) int {
	owner, err := strconv.Atoi(e.Get("owner"))
	if err != nil {
		return 0
	}
	return max(owner, 0)
}

// listsNone reports whether an event names neither one recipient nor several.
func (e *Event) listsNone() bool { return e.Recipient == 0 && e.Get(keyRecipients) == "" }

// release takes in that the lock of an owner was taken from it: that of one recipient, or
// with 0 all that it had.
func (d *Doubts) release(recipient int64, owner int) {
	mark := func(s doubt) doubt {
		sent := d.sentBy(s, owner)
		if sent != nil && !s.takenFrom(owner) {
			s.taken = append(slices.Clip(s.taken), taken{owner, sent, d.count})
		}
		return s
	}
	if recipient != 0 {
		d.one[recipient] = mark(d.of(recipient))
		return
	}
	d.rest = mark(d.rest)
	for r, s := range d.one {
		d.one[r] = mark(s)
	}
}

// takenFrom reports whether the lock was taken from an owner that may have sent.
func (s doubt) takenFrom(owner int) bool {
	return slices.ContainsFunc(s.taken, func(t taken) bool { return t.owner == owner })
}

// of returns what is known of a recipient.
func (d *Doubts) of(recipient int64) doubt {
	if s, ok := d.one[recipient]; ok {
		return s
	}
	return d.rest
}

// sentBy returns the event by which an owner sent the message to a recipient, if it had the
// recipient locked; nil: it did not send, or reported since how that ended.
func (d *Doubts) sentBy(s doubt, owner int) *Event {
	if owner == 0 {
		return nil
	}
	general := d.general[owner]
	if general.at <= s.since {
		general = position{}
	}
	if s.sent.event == nil || s.owner != owner {
		return general.event
	}
	// What lists the recipient is about it for certain. An event after the lock was taken is
	// about another attempt, maybe of this recipient.
	for _, t := range s.taken {
		if t.owner == owner && general.at > t.at {
			return general.event
		}
	}
	return s.sent.event
}

// Sent returns the event of an agent that sent the message to a recipient and did not report
// how it ended, nil if there is none.
func (d *Doubts) Sent(r *Recipient) *Event {
	s := d.of(r.Offset)
	if owner := d.about(s, r); owner != 0 {
		return d.sentBy(s, owner)
	}
	return s.sent.event
}

// About gives the dead owner that may have sent the message to an open recipient
// before it died; 0 if there is none. Its lock must still be there, or be known to
// have been taken from it.
func (d *Doubts) About(r *Recipient) int { return d.about(d.of(r.Offset), r) }

func (d *Doubts) about(s doubt, r *Recipient) int {
	if r.Tag == TagLocked && d.sentBy(s, r.Owner) != nil {
		return r.Owner
	}
	if n := len(s.taken); n > 0 {
		return s.taken[n-1].owner
	}
	return 0
}

// needs reports whether what is known of a recipient would be another thing without a sent
// event that lists no recipient.
func (d *Doubts) needs(e *Event, r *Recipient) bool {
	owner, s := ownerOf(e), d.of(r.Offset)
	for _, t := range s.taken {
		if t.owner == owner && t.sent == e {
			return true
		}
	}
	return (s.takenFrom(owner) || r.Tag == TagLocked && r.Owner == owner) && d.sentBy(s, owner) == e
}

// sameDoubt reports whether two histories report the same of a recipient: the owners that
// may have sent the message to it, and where each would have put it.
func sameDoubt(a, b *Doubts, r *Recipient) bool {
	x, y := a.of(r.Offset), b.of(r.Offset)
	same := func(e, f *Event) bool {
		return (e == nil) == (f == nil) && (e == nil || e.Text == f.Text && place(e) == place(f))
	}
	return same(x.sent.event, y.sent.event) && x.owner == y.owner &&
		a.about(x, r) == b.about(y, r) && same(a.Sent(r), b.Sent(r)) &&
		slices.EqualFunc(x.taken, y.taken, func(t, u taken) bool {
			return t.owner == u.owner && same(t.sent, u.sent) && same(a.sentBy(x, t.owner), b.sentBy(y, u.owner))
		})
}

// place returns where a sent event says that the message is.
func place(e *Event) string { return e.Get("at") + " " + e.Get("date") }
