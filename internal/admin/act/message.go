package act

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"zmailer/internal/admin/view"
	"zmailer/internal/postoffice"
	"zmailer/internal/postoffice/ledger"
	"zmailer/internal/postoffice/operations"
	"zmailer/internal/run/human"
	"zmailer/internal/workspec"
)

// tries is how often a message that moves on is looked for.
const tries = 5

// message acts on one message, wherever it has moved meanwhile. noted: its ID is in the file
// of the operation.
func (a *action) message(m *view.Message, noted bool) error {
	err := error(nil)
	for try := range tries {
		if try > 0 {
			s := a.spool()
			next, others, ferr := s.ByID(m.SpoolID)
			if next == nil {
				return notFound(a.po, m.SpoolID, a.Verb.Name, others, ferr)
			}
			next.Choose(a.Select, s.Now)
			m = next
		}
		if _, fits := a.fit(m); fits && !noted {
			if err := a.note([]byte(m.ID + "\n")); err != nil {
				return err
			}
			noted = true
		}
		err = a.once(m)
		if !errors.Is(err, operations.ErrMoved) && !errors.Is(err, postoffice.ErrGone) {
			return err
		}
	}
	return fmt.Errorf("%w: %w", err, ErrAgain)
}

func (a *action) once(m *view.Message) error {
	list, ok := a.fit(m)
	refuse := func(format string, args ...any) error {
		return fmt.Errorf("%s %s: "+format, append([]any{a.Verb.Name, m.ID}, args...)...)
	}
	switch {
	case a.Aside != nil && m.File.Dir != a.Aside.dir:
		return refuse("it is not in %s/ any more: it is %s", a.Aside.dir, m.State)
	case m.State == view.StateQueued && m.Problem != "":
		return refuse("%s", m.Problem)
	case m.State == view.StateQueued && !ok:
		return refuse("%s", a.unfit(m))
	case m.State == view.StateQueued:
		return a.queued(m, list)
	case ok:
		text, err := a.Verb.aside[m.State](a, m)
		if err != nil {
			return err
		}
		a.sum.Messages++
		a.sum.Recipients += max(len(m.Recipients), 1)
		a.report(m.ID, Outcome{Text: text, Message: m})
		return nil
	case m.State == view.StateFinishing:
		return refuse("no recipient is open; the scheduler is about to remove it")
	case m.State == view.StateWriting || m.State == view.StateClaimed || m.State == view.StateHandedOver:
		return refuse("it is %s at this moment: %w", m.State, ErrAgain)
	case a.Verb.instead != "":
		return refuse("it is not routed: it is %s; %s", m.State, a.Verb.instead)
	}
	return refuse("it is not routed: it is %s", m.State)
}

// unfit explains why no recipient of a queued message fits.
func (a *action) unfit(m *view.Message) string {
	for i := range m.Recipients {
		if m.Recipients[i].Open() {
			return "none of its open recipients can be " + strings.TrimSuffix(a.Verb.Done, " now") + ": " + m.Recipients[i].State
		}
	}
	return "no recipient is open"
}

// queued acts on recipients of a routed message.
func (a *action) queued(m *view.Message, list []view.Recipient) error {
	chosen := map[int64]string{}
	for i := range list {
		chosen[list[i].Offset] = list[i].Address
	}
	q := operations.Request{PostOffice: a.po, ID: m.SpoolID, Now: time.Now(), Who: a.Who, Order: string(a.sum.Operation), Reason: a.Reason,
		Report: a.Report || a.Verb == Expire && !a.Silent,
		// The address, too: a message that was routed again has others at these offsets.
		Match: func(_ *workspec.Group, r *workspec.Recipient) bool {
			address, ok := chosen[r.Offset]
			return ok && address == human.Clean(r.Address)
		}}
	if a.Verb == Remove {
		q.Who = "zmctl remove, " + a.Who
	}
	res, err := a.Verb.queued(a, q, m.SpecFile.Name)
	nothing := errors.Is(err, operations.ErrNothing)
	if err != nil && !nothing {
		return err
	}
	if res.To != (postoffice.SpoolID{}) {
		a.made[res.To.String()] = true
	}
	if len(res.Changed) > 0 {
		a.sum.Messages++
		a.sum.Recipients += len(res.Changed)
		o := Outcome{Text: a.Verb.Done + ": " + human.Addresses(res.Changed), Done: res.Changed, Busy: res.Busy, Left: res.Left}
		if res.To != (postoffice.SpoolID{}) {
			o.To = res.To.String()
			o.Text += " as " + o.To
		}
		a.report(m.ID, o)
	}
	switch {
	case len(res.Busy) > 0:
		a.sum.Busy += len(res.Busy)
		return fmt.Errorf("%s %s: delivery is in progress to %s: %w", a.Verb.Name, m.ID, human.Addresses(res.Busy), errBusy)
	case len(res.Left) > 0:
		return fmt.Errorf("%s %s: cannot be routed again, they are files or programs behind an alias: %s", a.Verb.Name, m.ID, human.Addresses(res.Left))
	case len(res.Doubt) > 0:
		return fmt.Errorf("%s %s: a transport agent died that may have delivered it; until the next attempt has a result it cannot be routed again: %s",
			a.Verb.Name, m.ID, human.Addresses(res.Doubt))
	case nothing:
		return fmt.Errorf("%s %s: %s", a.Verb.Name, m.ID, a.unfit(m))
	}
	return nil
}

// freeze moves a message that is not routed to freezer/.
func (a *action) freeze(m *view.Message) (string, error) {
	if m.File.Dir == postoffice.Public {
		return "", fmt.Errorf("%s %s: it is on its way to router/: %w", a.Verb.Name, m.ID, ErrAgain)
	}
	name, err := a.po.Aside.Freeze(m.File.Dir, m.File.Name, m.SpoolID, workspec.CausePerson)
	if err == nil {
		a.explain(postoffice.Freezer, postoffice.WasFrozen, m)
	}
	return "is freezer/" + name + " now", err
}

// recall gives a message that is put aside back to the router.
func (a *action) recall(m *view.Message) (string, error) {
	a.explain(m.File.Dir, "", m)
	to, err := a.po.Aside.Recall(m.File.Dir, m.File.Name, m.SpoolID)
	return m.File.Path() + " is " + to.Name + " now", err
}

// giveBack is recall for many messages, which do not go before new mail.
func (a *action) giveBack(m *view.Message) (string, error) {
	dir, name := m.File.Dir, m.File.Name
	// Before the router has it: no policy freezes again what was thawed.
	a.explain(dir, "", m)
	to, err := a.po.Aside.RecallTo(a.pace.to, dir, name, m.SpoolID)
	if err != nil {
		return "", fmt.Errorf("%s %s: %w", a.Verb.Name, name, err)
	}
	a.pace.gave(m.SpoolID, dir+"/"+name)
	return m.File.Path() + " is " + to.Name + " now", nil
}

// giveMended gives an only copy to the router if the router can use it.
func (a *action) giveMended(m *view.Message) (string, error) {
	switch {
	case m.Unusable || m.Unreadable:
		return "", fmt.Errorf("%s %s: it still cannot be routed: %s; mend %s with an editor", a.Verb.Name, m.File.Name, human.Clean(m.Problem), m.File.Path())
	case m.Octets > m.Size:
		return "", fmt.Errorf("%s %s: %s; remove that line if you have changed the file yourself", a.Verb.Name, m.File.Name, human.Clean(m.Problem))
	}
	return a.giveBack(m)
}

// refuseCopy explains why a copy is not given to the router.
func (a *action) refuseCopy(m *view.Message) (string, error) {
	return "", fmt.Errorf("%s %s: it is a copy for the postmaster, the message itself went on: it would be delivered twice", a.Verb.Name, m.File.Name)
}

// discardOnly discards the only copy of a message if it is named by its ID and forced.
func (a *action) discardOnly(m *view.Message) (string, error) {
	if !a.Force || !a.Aside.hasID(m.SpoolID) {
		return "", fmt.Errorf("%s %s: it is the only copy of a message that was accepted; look at it with zmctl postman show %s, then: zmctl postman discard --force %s",
			a.Verb.Name, m.File.Name, m.File.Name, m.ID)
	}
	return a.putAway(m)
}

// putAway moves a message that is not routed to removed/.
func (a *action) putAway(m *view.Message) (string, error) {
	if m.File.Dir == postoffice.Public {
		return "", fmt.Errorf("remove %s: it is on its way to router/: %w", m.ID, ErrAgain)
	}
	if a.Report {
		return "", fmt.Errorf("remove %s: only a routed message can have a report; without --report it is removed", m.ID)
	}
	if m.State != view.StateCopy {
		if a.journal == nil {
			a.journal = ledger.New(a.po, ledger.Config{Role: "zmctl"})
		}
		// Crash: the next program that has the message enters into the ledger that it is there.
		a.journal.Gone(m.SpoolID, len(m.Recipients), ledger.ByPerson)
	}
	err := a.po.Removed.PutAway(m.File.Dir, m.File.Name, m.SpoolID)
	a.away[m.File.Dir] = true
	return "removed from " + m.File.Dir + "/", err
}

// explain writes beside a message that this operator froze it, or, without what, that it
// was given back.
func (a *action) explain(dir, what string, m *view.Message) {
	switch {
	case what != "":
	case dir == postoffice.Freezer:
		what = postoffice.WasThawed
	case m.Reason != "":
		what = postoffice.WasResubmitted
	default:
		return
	}
	// The operation does not depend on this text.
	_ = a.po.Aside.Explain(dir, postoffice.Reason{ID: m.SpoolID, Time: time.Now(), Who: a.Who, What: what, Text: a.Reason})
}

// notFound explains why there is no message to change.
func notFound(po *postoffice.PostOffice, id postoffice.SpoolID, verb string, others []postoffice.SpoolID, err error) error {
	for _, o := range others {
		err = errors.Join(err, fmt.Errorf("%s %s: %s", verb, id, otherMessage(o)))
	}
	if err != nil {
		return err
	}
	if m, lerr := po.Removed.Find(id); lerr == nil && m != nil {
		return fmt.Errorf("%s %s: it is in removed/ already, since %s", verb, id, m.Since.Format(time.DateTime))
	}
	return fmt.Errorf("%s %s: no file of that message is here; it was delivered, reported or dropped", verb, id)
}

// otherMessage describes the message that has the inode number of another one now.
func otherMessage(o postoffice.SpoolID) string {
	return fmt.Sprintf("inode %d belongs to another message now, %s, written %s", o.Ino, o, o.Time().Format(time.DateTime))
}
