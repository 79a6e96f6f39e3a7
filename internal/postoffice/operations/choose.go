package operations

import (
	"zmailer/internal/postoffice"
	"zmailer/internal/workspec"
)

// chosen is a recipient to change.
type chosen struct {
	group *workspec.Group
	rcpt  *workspec.Recipient
	order workspec.Order
	// busy: an agent that lives has it; its tag is left to that one.
	busy bool
	// failed: it is not open.
	failed bool
}

// choose finds the recipients that the request is about: those that are open, and with
// Failed those that have failed, that fits accepts and no one has removed.
func (q *Request) choose(spec *workspec.Spec, fits func(*chosen) bool) ([]chosen, error) {
	var list []chosen
	removal, orders := spec.Removal(), spec.Orders()
	for g, r := range spec.All() {
		c := chosen{group: g, rcpt: r}
		if removal.Removed(c.rcpt) || q.Match != nil && !q.Match(g, c.rcpt) {
			continue
		}
		c.order = orders.Of(c.rcpt.Offset)
		if err := q.look(&c); err != nil {
			return nil, err
		}
		now := *c.rcpt
		if now.Tag == workspec.TagLocked && !c.busy {
			now.Tag = workspec.TagToDo // a dead agent's
		}
		switch workspec.Decided(removal, orders, &now) {
		case workspec.TagOK:
			continue
		case workspec.TagFailed:
			if !q.Failed {
				continue
			}
			c.failed = true
		}
		if fits(&c) {
			list = append(list, c)
		}
	}
	return list, nil
}

// look finds out whether an agent that lives has the recipient.
func (q *Request) look(c *chosen) (err error) {
	if c.rcpt.Tag == workspec.TagLocked {
		c.busy, err = q.PostOffice.Owners.Alive(c.rcpt.Owner)
	}
	return err
}

// fill sets the addresses of the result.
func (res *Result) fill(list []chosen) {
	for i := range list {
		if list[i].busy {
			res.Busy = append(res.Busy, list[i].rcpt.Address)
		} else {
			res.Changed = append(res.Changed, list[i].rcpt.Address)
		}
	}
}

func offsets(list []chosen) []int64 {
	offs := make([]int64, len(list))
	for i := range list {
		offs[i] = list[i].rcpt.Offset
	}
	return offs
}

// decision is what an order writes.
type decision struct {
	event workspec.Event
	// tag follows the event; TagLocked: none does.
	tag workspec.Tag
	// diagnostic is the line of each recipient that precedes the event; nil: none.
	diagnostic func(*chosen) *workspec.Diagnostic
}

// event returns the line of an order about those chosen.
func (q *Request) event(word string, list []chosen, more ...workspec.Attr) workspec.Event {
	return workspec.OrderEvent(q.Now, word, q.ID.String(), offsets(list), q.Who, q.Order, q.Reason, more...)
}

// decide writes the decision and then the tags.
func (q *Request) decide(f *postoffice.Spec, spec *workspec.Spec, d decision, list []chosen) error {
	var lines []byte
	if d.diagnostic != nil {
		for i := range list {
			lines = workspec.AppendDiagnostic(lines, d.diagnostic(&list[i]))
		}
	}
	lines = workspec.AppendEvent(lines, &d.event)
	// Crash: without the event nothing is decided; diagnostics of recipients that are
	// still open mean nothing. With it, the tags follow when the scheduler reads it.
	if err := f.Append(lines); err != nil {
		return err
	}
	// Crash: as before; what we say is done must outlive a power loss.
	if err := f.Sync(); err != nil {
		return err
	}
	if d.tag == workspec.TagLocked {
		return nil
	}
	return setTags(f, spec, d.tag, list)
}

// setTags sets the tags according to the decision.
func setTags(f *postoffice.Spec, spec *workspec.Spec, tag workspec.Tag, list []chosen) error {
	for i := range list {
		if list[i].busy {
			continue // it follows when the agent gives the recipient back
		}
		// Crash: some tags follow the decision, the others will.
		if err := f.SetTag(workspec.TagBytes(spec.Format, tag), workspec.TagOffset(list[i].rcpt.Offset)); err != nil {
			return err
		}
	}
	return f.Sync()
}
