package agent

import (
	"strconv"
	"strings"

	"zmailer/internal/workspec"
)

// maxListed is how many recipients a sent event lists; with more it is about all
// that its owner has locked.
const maxListed = 100

// doubt is what the history says of a recipient: the owner that sent the message
// and did not say how it ended, 0 if there is none, and whether its lock was made
// blank since.
type doubt struct {
	owner    int
	released bool
}

// doubts is read from a history in one pass.
type doubts struct {
	one  map[int64]doubt // recipients with events of their own
	rest doubt           // all others
}

func readDoubts(history []workspec.Event) doubts {
	d := doubts{}
	if len(history) == 0 {
		return d
	}
	d.one = map[int64]doubt{}
	for i := range history {
		e := &history[i]
		owner, _ := strconv.Atoi(e.Get("owner"))
		switch e.Event {
		case workspec.EventSent:
			d.sent(e, owner)
		case workspec.EventReleased:
			d.release(e.Recipient, owner)
		case workspec.EventDeferred:
			// An answer came, unless the lock was taken from an agent that gave none.
			if e.Recipient != 0 && !d.of(e.Recipient).released {
				d.one[e.Recipient] = doubt{}
			}
		case workspec.EventInDoubt:
			if e.Recipient != 0 {
				d.one[e.Recipient] = doubt{}
			}
		}
	}
	return d
}

func (d *doubts) sent(e *workspec.Event, owner int) {
	list := e.Get("rcpts")
	switch {
	case e.Recipient != 0:
		d.one[e.Recipient] = doubt{owner: owner}
	case list == "":
		clear(d.one)
		d.rest = doubt{owner: owner}
	default:
		for s := range strings.SplitSeq(list, ",") {
			if n, err := strconv.ParseInt(s, 10, 64); err == nil {
				d.one[n] = doubt{owner: owner}
			}
		}
	}
}

func (d *doubts) release(recipient int64, owner int) {
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

// of is what is known of a recipient.
func (d *doubts) of(recipient int64) doubt {
	if s, ok := d.one[recipient]; ok {
		return s
	}
	return d.rest
}

// about gives the dead owner that may have sent the message to an open recipient
// before it died; 0 if there is none. Its lock must still be there, or be known to
// have been released.
func (d *doubts) about(r *workspec.Recipient) int {
	s := d.of(r.Offset)
	if s.released || r.Tag == workspec.TagLocked && r.Owner == s.owner {
		return s.owner
	}
	return 0
}
