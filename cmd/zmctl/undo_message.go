package main

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"zmailer/internal/admin/view"
	"zmailer/internal/postoffice"
	"zmailer/internal/postoffice/operations"
	"zmailer/internal/run/human"
	"zmailer/internal/workspec"
)

// undo takes back what was ordered last about one message.
func (e *editing) undo() error {
	var err error
	for range tries {
		m, lerr := e.removed()
		var text string
		switch {
		case lerr != nil:
			return lerr
		case m == nil:
			text, err = e.undoQueued()
		default:
			text, err = e.undoAway(m, "")
		}
		if err == nil {
			fmt.Fprintf(e.c.App.Writer, "%s  %s\n", e.id, text)
			if !view.New(e.po, e.now).Runs("scheduler") {
				fmt.Fprintln(e.c.App.Writer, "    but no scheduler runs: zmctl start starts the daemons")
			}
		}
		if !errors.Is(err, operations.ErrMoved) && !errors.Is(err, postoffice.ErrGone) {
			return err
		}
	}
	return fmt.Errorf("%w: %w", err, errAgain)
}

// undoAway puts a message in removed/ back; of an order, those recipients that it removed.
func (e *editing) undoAway(m *postoffice.RemovedMessage, of postoffice.OperationID) (string, error) {
	switch {
	case m.Spec != "":
		q := e.request()
		if of != "" {
			s := view.New(e.po, e.now)
			r, err := s.Shelved(m, 0)
			if err != nil || r.Message.Spec == nil {
				return "", errors.Join(err, operations.ErrMoved)
			}
			q.Match = among(eventsOf(r.Message.Spec, of, workspec.EventRemoved))
		}
		res, err := operations.UndoShelved(q)
		return "is queued again for " + human.Addresses(res.Changed), err
	case m.From == postoffice.Queue:
		// The specification is in transport/, on its way here or back.
		moved, err := e.awaitMove()
		if err == nil && moved == nil {
			err = operations.ErrMoved
		}
		if err != nil {
			return "", err
		}
		return e.undoAway(moved, of)
	}
	name, err := e.po.Removed.PutBack(*m)
	return "is " + name + " again", err
}

// awaitMove waits until the scheduler has moved the message's specification, too, and
// returns the message as it is in removed/ then, nil if it is not there any more.
func (e *editing) awaitMove() (*postoffice.RemovedMessage, error) {
	if view.New(e.po, e.now).Runs("scheduler") {
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for range 200 {
			select {
			case <-e.c.Context.Done():
				return nil, e.c.Context.Err()
			case <-tick.C:
			}
			if m, err := e.removed(); err != nil || m == nil || m.Spec != "" || m.From != postoffice.Queue {
				return m, err
			}
		}
	}
	return nil, fmt.Errorf("undo %s: the scheduler is about to move it, or will when it runs: %w", e.id, errAgain)
}

// undoQueued takes back what was ordered last about a message in the queue.
func (e *editing) undoQueued() (string, error) {
	m, others, err := view.New(e.po, e.now).ByID(e.id)
	switch {
	case m == nil && err == nil && len(others) == 0:
		return "", fmt.Errorf("undo %s: it is not in removed/, where messages stay for %s, and nowhere else", e.id, human.Span(e.keep))
	case m == nil:
		return "", e.notFound("undo", others, err)
	case m.State == view.StateFrozen && strings.HasPrefix(m.Why, workspec.CausePerson):
		to, err := e.po.Aside.Recall(m.File.Dir, m.File.Name, e.id)
		return "is " + to.Name + " now", err
	case m.State != view.StateQueued || m.Spec == nil:
		return "", fmt.Errorf("undo %s: nothing was removed: it is %s", e.id, m.State)
	}
	for i := range m.Recipients {
		if m.Recipients[i].State != view.Removed {
			continue
		}
		res, err := operations.Undo(e.request(), m.SpecFile.Name)
		return "is queued again for " + human.Addresses(res.Changed), err
	}
	for _, ev := range slices.Backward(m.Spec.History) {
		if of, ok := postoffice.ParseOperationID(ev.Get("order")); ok {
			text, err := e.reverse(m, of, false)
			if errors.Is(err, operations.ErrNothing) {
				err = fmt.Errorf("undo %s: nothing of order %s is left to take back", e.id, of)
			}
			return text, err
		}
	}
	return "", fmt.Errorf("undo %s: it is queued, and no recipient is removed or held by an order", e.id)
}

// eventsOf are the lines that an order has written into a message's history.
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

// reverse takes an order back in a message that is queued, for those recipients for whom
// it is what was ordered last.
func (e *editing) reverse(m *view.Message, of postoffice.OperationID, silent bool) (string, error) {
	q := e.request()
	q.Reason = "undo of " + string(of)
	verb := of.Verb()
	if verb != "remove" {
		q.Who = who(e.c.Context) // an attribute, not a text
	}
	word := map[string]string{
		"hold": workspec.EventHold, "release": workspec.EventRelease, "freeze": workspec.EventFrozen, "thaw": workspec.EventThawed,
		"expire": workspec.EventExpired, "remove": workspec.EventRemoved,
	}[verb]
	events := eventsOf(m.Spec, of, word)
	if len(events) == 0 || word == "" {
		if v := verbOf(verb); v != nil && v.undo == "" {
			return "", fmt.Errorf("undo %s: %s cannot be undone", e.id, verb)
		}
		return "", operations.ErrNothing
	}
	q.Match = among(events)
	say := func(text string, res operations.Result, err error) (string, error) {
		return text + ": " + human.Addresses(slices.Concat(res.Changed, res.Busy)), err
	}
	switch verb {
	case "hold", "freeze":
		// What somebody has held or frozen since is his.
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
			res, err := operations.Release(q, m.SpecFile.Name)
			return say("released", res, err)
		}
		res, err := operations.Thaw(q, m.SpecFile.Name)
		return say("thawed, its time begins anew", res, err)
	case "release":
		return e.holdAgain(m, q, events)
	case "thaw":
		cause := workspec.CausePerson
		for i := range m.Spec.History {
			if ev := &m.Spec.History[i]; ev.Event == workspec.EventFrozen && ev.LineOffset < events[0].LineOffset {
				cause = ev.Get(workspec.KeyCause)
			}
		}
		res, err := operations.Freeze(q, m.SpecFile.Name, cause)
		return say("frozen again", res, err)
	case "expire":
		q.Failed, q.Told = true, silent
		res, err := operations.Retry(q, m.SpecFile.Name)
		switch {
		case len(res.Busy) > 0 && errors.Is(err, operations.ErrNothing):
			err = fmt.Errorf("undo %s: delivered to at this moment: %s: %w", e.id, human.Addresses(res.Busy), errAgain)
		case errors.Is(err, operations.ErrNothing):
			err = fmt.Errorf("undo %s: the sender was told", e.id)
		}
		return say("open again", res, err)
	}
	res, err := operations.Undo(q, m.SpecFile.Name)
	return "is queued again for " + human.Addresses(res.Changed), err
}

// holdAgain holds recipients until when they were held before they were released.
func (e *editing) holdAgain(m *view.Message, q operations.Request, events []*workspec.Event) (string, error) {
	until := map[int64]map[int64]bool{} // milliseconds → recipients
	for _, ev := range events {
		for _, off := range ev.Recipients() {
			for _, was := range slices.Backward(m.Spec.History) {
				if was.LineOffset >= ev.LineOffset || was.Event != workspec.EventHold || !slices.Contains(was.Recipients(), off) {
					continue
				}
				// What is no time is none, as for the scheduler.
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
