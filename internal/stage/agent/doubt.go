package agent

import (
	"fmt"
	"strconv"

	"zmailer/internal/workspec"
)

// maxListed is how many recipients a sent event lists; with more it is about all
// that its owner has locked.
const maxListed = 100

// doubt is the event that says that a recipient's message is sent again.
func (d *Delivery) doubt(recipient int64, owner string) workspec.Event {
	return workspec.Event{Time: d.agent.now(), Recipient: recipient, Event: workspec.EventInDoubt,
		Attrs: []workspec.Attr{{Key: "owner", Value: owner}},
		Text:  "its agent died after it had sent the message; it is sent again"}
}

// taken is the event that says that a recipient's lock is taken from a dead owner that may
// have delivered. An agent that settles doubts writes it before it overwrites the lock: if
// it dies, too, before it has found out, the doubt about the first owner must not go with
// that owner's lock.
func (d *Delivery) taken(recipient int64, owner int) workspec.Event {
	return workspec.Event{Time: d.agent.now(), Recipient: recipient, Event: workspec.EventUnlocked,
		Attrs: []workspec.Attr{{Key: "owner", Value: strconv.Itoa(owner)}}}
}

// record appends doubts, and logs those that are not to be settled.
func (d *Delivery) record(doubts []workspec.Event) error {
	if len(doubts) == 0 {
		return nil
	}
	lines := d.lines[:0]
	for i := range doubts {
		lines = workspec.AppendEvent(lines, &doubts[i])
		if doubts[i].Event != workspec.EventInDoubt {
			continue
		}
		d.agent.log().Warn("in-doubt", "id", d.ID(), "name", d.Job.Name, "host", d.Job.Host,
			"rcpt", d.address(doubts[i].Recipient), "owner", doubts[i].Get("owner"))
	}
	d.lines = lines[:0]
	// Crash: a doubt that is recorded and not sent again yet; the next agent records its
	// own.
	return d.file.Append(lines)
}

// InDoubt records that nobody can know whether a recipient with Sent has the message
// already, so that it is sent again. Only with Agent.Settles; after an error the
// message must not be sent.
func (d *Delivery) InDoubt(r *Recipient) error {
	if r.Sent == nil {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	// Crash: recorded, and perhaps never sent again by us: the next agent looks anew.
	if err := d.record([]workspec.Event{d.doubt(r.Offset, r.Sent.Get("owner"))}); err != nil {
		return fmt.Errorf("record the doubt: %w", err)
	}
	return nil
}
