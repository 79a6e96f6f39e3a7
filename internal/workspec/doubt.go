package workspec

import "strconv"

// doubt is what the history says of a recipient: the owner that sent the message
// and did not say how it ended, 0 if there is none, and whether its lock was made
// blank since.
type doubt struct {
	owner    int
	released bool
	sent     *Event // nil: there is none
}

// Doubts are the recipients whose message may have been delivered, by an agent that did
// not say so.
type Doubts struct {
	one  map[int64]doubt // recipients with events of their own
	rest doubt           // all others
}

// Doubts reads them from the history, in one pass.
func (s *Spec) Doubts() Doubts {
	d := Doubts{}
	if len(s.History) == 0 {
		return d
	}
	d.one = map[int64]doubt{}
	for i := range s.History {
		e := &s.History[i]
		owner, _ := strconv.Atoi(e.Get("owner"))
		switch e.Event {
		case EventSent:
			d.send(s, e, owner)
		case EventUnlocked:
			d.release(e.Recipient, owner)
		case EventDeferred:
			// An answer came, unless the lock was taken from an agent that gave none.
			for r := range s.About(e) {
				d.answer(r.Offset)
			}
		case EventInDoubt:
			for r := range s.About(e) {
				d.one[r.Offset] = doubt{}
			}
		}
	}
	return d
}

func (d *Doubts) send(s *Spec, e *Event, owner int) {
	if e.Recipient == 0 && e.Get(keyRecipients) == "" {
		clear(d.one)
		d.rest = doubt{owner: owner, sent: e}
		return
	}
	for r := range s.About(e) {
		d.one[r.Offset] = doubt{owner: owner, sent: e}
	}
}

// answer takes in an answer about a recipient. It says nothing of one that is not in doubt,
// which most are: of them nothing is kept.
func (d *Doubts) answer(recipient int64) (counts bool) {
	is := d.of(recipient)
	if is.released {
		return false
	}
	if is != (doubt{}) {
		d.one[recipient] = doubt{}
	}
	return true
}

func (d *Doubts) release(recipient int64, owner int) {
	mark := func(s doubt) doubt {
		s.released = s.released || s.owner == owner
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

// Sent is the event of an agent that sent the message to a recipient and did not say how
// it ended, nil if there is none.
func (d *Doubts) Sent(recipient int64) *Event { return d.of(recipient).sent }

// of is what is known of a recipient.
func (d *Doubts) of(recipient int64) doubt {
	if s, ok := d.one[recipient]; ok {
		return s
	}
	return d.rest
}

// About gives the dead owner that may have sent the message to an open recipient
// before it died; 0 if there is none. Its lock must still be there, or be known to
// have been released.
func (d *Doubts) About(r *Recipient) int {
	s := d.of(r.Offset)
	if s.released || r.Tag == TagLocked && r.Owner == s.owner {
		return s.owner
	}
	return 0
}
