package act

import (
	"errors"
	"slices"
	"strconv"
	"time"

	"zmailer/internal/admin/view"
	"zmailer/internal/postoffice"
	"zmailer/internal/postoffice/operations"
	"zmailer/internal/run/human"
	"zmailer/internal/workspec"
)

// eventsOf returns the lines that an operation has written into the history of a message.
func eventsOf(spec *workspec.Spec, of postoffice.OperationID, word string) []*workspec.Event {
	var list []*workspec.Event
	for i := range spec.History {
		if ev := &spec.History[i]; ev.Get("order") == string(of) && ev.Event == word {
			list = append(list, ev)
		}
	}
	return list
}

// among chooses the recipients of some lines.
func among(events []*workspec.Event) func(*workspec.Group, *workspec.Recipient) bool {
	set := map[int64]bool{}
	for _, ev := range events {
		for _, off := range ev.Recipients() {
			set[off] = true
		}
	}
	return func(_ *workspec.Group, r *workspec.Recipient) bool { return set[r.Offset] }
}

// reverse undoes an operation in a queued message, for the recipients for whom it was the
// last one.
func (e *edit) reverse(m *view.Message, of postoffice.OperationID, silent bool) (string, error) {
	q := e.request()
	q.Reason = "undo of " + string(of)
	verb := of.Verb()
	if verb != Remove.Name {
		q.Who = e.Who // an attribute, not a text
	}
	word := map[string]string{
		"hold": workspec.EventHold, "release": workspec.EventRelease, "freeze": workspec.EventFrozen, "thaw": workspec.EventThawed,
		"expire": workspec.EventExpired, "remove": workspec.EventRemoved,
	}[verb]
	events := eventsOf(m.Spec, of, word)
	if len(events) == 0 || word == "" {
		if v := VerbOf(verb); v != nil && v.Undo == "" {
			return "", e.refuse("%s cannot be undone", verb)
		}
		return "", operations.ErrNothing
	}
	q.Match = among(events)
	text := ""
	var res operations.Result
	var err error
	switch verb {
	case "hold", "freeze":
		// What was held or frozen since by another operation stays so.
		state, fits := view.Held, q.Match
		if verb == "freeze" {
			state = view.Frozen
		}
		ours := map[int64]bool{}
		for i := range m.Recipients {
			r := &m.Recipients[i]
			ours[r.Offset] = r.State == state && r.Order == string(of) || r.State == view.Delivering
		}
		q.Match = func(g *workspec.Group, r *workspec.Recipient) bool { return fits(g, r) && ours[r.Offset] }
		if verb == "hold" {
			text = "released"
			res, err = operations.Release(q, m.SpecFile.Name)
			break
		}
		text = "thawed, its time begins anew"
		res, err = operations.Thaw(q, m.SpecFile.Name)
	case "release":
		return e.holdAgain(m, q, events)
	case "thaw":
		cause := workspec.CausePerson
		for i := range m.Spec.History {
			if ev := &m.Spec.History[i]; ev.Event == workspec.EventFrozen && ev.LineOffset < events[0].LineOffset {
				cause = ev.Get(workspec.KeyCause)
			}
		}
		text = "frozen again"
		res, err = operations.Freeze(q, m.SpecFile.Name, cause)
	case "expire":
		q.Failed, q.Told = true, silent
		text = "open again"
		res, err = operations.Retry(q, m.SpecFile.Name)
		switch {
		case len(res.Busy) > 0 && errors.Is(err, operations.ErrNothing):
			err = e.refuse("delivery is in progress to %s: %w", human.Addresses(res.Busy), ErrAgain)
		case errors.Is(err, operations.ErrNothing):
			err = e.refuse("the sender has a report")
		}
	default:
		res, err := operations.Undo(q, m.SpecFile.Name)
		return "is queued again for " + human.Addresses(res.Changed), err
	}
	return text + ": " + human.Addresses(slices.Concat(res.Changed, res.Busy)), err
}

// holdAgain holds recipients until the time until which they were held before they were
// released.
func (e *edit) holdAgain(m *view.Message, q operations.Request, events []*workspec.Event) (string, error) {
	until := map[int64]map[int64]bool{} // milliseconds → recipients
	for _, ev := range events {
		for _, off := range ev.Recipients() {
			for _, was := range slices.Backward(m.Spec.History) {
				if was.LineOffset >= ev.LineOffset || was.Event != workspec.EventHold || !slices.Contains(was.Recipients(), off) {
					continue
				}
				// Invalid times are ignored, as the scheduler ignores them.
				ms, _ := strconv.ParseInt(was.Get("until"), 10, 64)
				if until[ms] == nil {
					until[ms] = map[int64]bool{}
				}
				until[ms][off] = true
				break
			}
		}
	}
	var all operations.Result
	for ms, set := range until {
		end := time.Time{}
		if ms > 0 {
			if end = time.UnixMilli(ms); !end.After(q.Now) {
				continue // it would have ended by now
			}
		}
		q.Match = func(_ *workspec.Group, r *workspec.Recipient) bool { return set[r.Offset] }
		res, err := operations.Hold(q, m.SpecFile.Name, end)
		if err != nil && !errors.Is(err, operations.ErrNothing) {
			return "", err
		}
		all.Changed = append(all.Changed, append(res.Changed, res.Busy...)...)
	}
	if len(all.Changed) == 0 {
		return "", operations.ErrNothing
	}
	return "held again: " + human.Addresses(all.Changed), nil
}
