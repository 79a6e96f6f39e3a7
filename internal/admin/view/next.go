package view

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"zmailer/internal/postoffice"
	"zmailer/internal/run/config"
	"zmailer/internal/run/human"
	"zmailer/internal/workspec"
)

// Explainer explains why messages wait, and what happens to them next.
type Explainer struct {
	Spool     *Spool
	settings  *config.Config      // nil: not known
	resubmits config.Resubmission // when routers try deferred mail again; the zero value: never
}

// NewExplainer makes an Explainer with the configuration, which has the times of retries and
// expiry; nil: it is not known.
func NewExplainer(s *Spool, settings *config.Config) *Explainer {
	return &Explainer{s, settings, resubmission(settings)}
}

func resubmission(settings *config.Config) config.Resubmission {
	if settings == nil {
		return config.Resubmission{}
	}
	r, _ := settings.Resubmission() // they were checked when they were read
	return r
}

// Next describes what happens to a message next.
func (x *Explainer) Next(m *Message) []string {
	switch m.State {
	case StateWriting:
		return []string{"It is being written; it is not accepted yet."}
	case StateAccepted:
		return x.nextAccepted(m)
	case StateClaimed:
		if m.Owner.Alive {
			return []string{"It is being routed by " + m.Owner.String() + "."}
		}
		return x.need("router", "The router that had it is dead. The next scan of a router moves it back to router/ and routes it again.")
	case StateHandedOver:
		if m.Owner != nil && m.Owner.Alive {
			return []string{"It is being handed over by " + m.Owner.String() + "; its work specification follows."}
		}
		return x.need("router", "The router that handed it over is dead. Its work specification is put in place if it is whole, else it goes back to router/.")
	case StateQueued:
		return x.nextQueued(m)
	case StateFinishing:
		return x.nextFinishing(m)
	case StateDeferred:
		return x.nextDeferred(m)
	case StateFrozen:
		cause := "is held by policy (" + m.Why + ")"
		if m.Why == workspec.CausePerson {
			cause = "was frozen by an operator"
		}
		return m.because("Nothing until an operator decides: it "+cause+".",
			"To have it routed: zmctl freezer thaw "+m.File.Name+"; to throw it away: zmctl freezer discard "+m.File.Name)
	case StateSetAside:
		return m.because("Nothing: it cannot be routed, and this is the only copy. No program removes it.",
			"Mend the file with an editor, then: zmctl postman resubmit "+m.File.Name+"; to throw it away: zmctl postman discard --force "+m.ID)
	case StateRemoved:
		return []string{"Nothing: it was removed. To put it back: zmctl undo " + m.ID,
			"It is deleted after REMOVEDKEEP."}
	case StateCopy:
		return m.because("Nothing: the message went on; this is a copy for the postmaster ("+m.Why+").",
			"It is removed after POSTMANKEEP, or now: zmctl postman discard "+m.File.Name)
	}
	return nil
}

// TriesAgain reports whether routers route a deferred message again by themselves.
func (x *Explainer) TriesAgain(m *Message) bool {
	return !x.resubmits.IsOff() && m.Why != postoffice.WhyCrash
}

func (x *Explainer) nextDeferred(m *Message) []string {
	todo := "What would become of it now: zmctl resubmit --check " + m.File.Name + "; "
	if !x.TriesAgain(m) {
		return m.because("Nothing until an operator decides: the router could not route it ("+m.Why+").",
			todo+"when the cause is gone: zmctl resubmit "+m.ID)
	}
	arrived, aside := m.File.Info.ModTime, m.File.Info.CTime
	due := x.resubmits.Due(arrived, aside)
	when := "with the next scan of a router"
	if !x.resubmits.IsDue(arrived, aside, x.Spool.Now) {
		when = "in " + human.Span(due.Sub(x.Spool.Now)) + ", at " + due.Local().Format(human.TimeFormat)
	}
	lines := m.because("The router could not route it ("+m.Why+"). It tries again "+when+".", todo+"to have it routed at once: zmctl resubmit "+m.ID)
	if e := x.resubmits.Expiry; e > 0 {
		over := arrived.Add(e)
		last := "If it cannot be routed by " + over.Local().Format(human.TimeFormat) + " it is given up and its sender gets a report."
		if !due.Before(over) {
			last = "That is the last attempt: if it cannot be routed then it is given up and its sender gets a report."
		}
		lines = slices.Insert(lines, len(lines)-1, last)
	}
	return append(lines, x.need("router", "")[1:]...)
}

// because puts the reason in full between what happens and what to do.
func (m *Message) because(what, todo string) []string {
	if m.Reason == "" {
		return []string{what, todo}
	}
	return []string{what, "The reason: " + strings.TrimSuffix(m.Reason, ".") + ".", todo}
}

// ChannelHold is the channel whose host is a condition.
const ChannelHold = "hold"

// need adds that the program which does it is not running.
func (x *Explainer) need(role, sentence string) []string {
	if x.Spool.Runs(role) {
		return []string{sentence}
	}
	return []string{sentence, "But no " + role + " is running: zmctl start starts the daemons."}
}

func (x *Explainer) nextAccepted(m *Message) []string {
	switch {
	case x.Spool.PO.Submissions.IsInbox(m.File.Dir) && m.Problem != "":
		return []string{"Nothing: it is incomplete and was never accepted. Remove the file."}
	case x.Spool.PO.Submissions.IsInbox(m.File.Dir) && !x.isDaemons(m.File):
		return x.need("router", "A router copies it into a file of its own and routes that.")
	case m.File.Dir == postoffice.Public:
		if pid, held := x.Spool.Holder(m.File); held {
			return []string{fmt.Sprintf("Its submitter, pid %d, moves it to router/.", pid)}
		}
		return x.need("router", "Its submitter is dead. The next scan of a router moves it to router/.")
	case m.Problem != "":
		return x.need("router", "A router finds that it cannot be routed and sets it aside as postman/"+m.Name+".")
	}
	return x.need("router", "The next router that is free claims and routes it.")
}

// isDaemons reports whether a file belongs to root or the postoffice's owner.
func (x *Explainer) isDaemons(f File) bool {
	return f.Info.UID == 0 || f.Info.UID == x.Spool.PO.Owner()
}

func (x *Explainer) nextQueued(m *Message) []string {
	switch {
	case m.denied:
		return []string{"Only root and the owner of the file may read its work specification: ask again as one of them."}
	case m.Spec == nil:
		return []string{"Nothing: its work specification cannot be read. The scheduler leaves it alone and logs that."}
	case !m.Spec.Complete:
		return x.need("scheduler", "Its work specification is not whole. The scheduler removes that and gives the message back to router/.")
	}
	var lines []string
	left := 0
	for i := range m.Recipients {
		r := &m.Recipients[i]
		if !r.Open() {
			continue
		}
		left++
		lines = append(lines, r.next(x.Spool.Now))
	}
	if left == 0 {
		lines = []string{"Every recipient is final. The scheduler sends the report that is due and removes both files."}
	}
	if !x.Spool.Runs("scheduler") {
		lines = append(lines, "But no scheduler is running: zmctl start starts the daemons.")
	}
	return lines
}

// next describes what happens to an open recipient.
func (r *Recipient) next(now time.Time) string {
	who := "<" + r.Address + ">"
	switch {
	case r.State == Delivering:
		return who + " is being delivered by " + r.Owner.String() + "."
	case r.State == Stale:
		return who + " was being delivered by " + r.Owner.String() + "; the scheduler gives it to another agent; the history shows whether the message may have been delivered."
	case r.State == Unserved:
		return who + " is not served: " + r.Unserved + "."
	case r.State == Frozen && r.Cause != "":
		return who + " is frozen (" + r.Cause + ") and waits for an operator: zmctl thaw tries it again, zmctl expire gives it up."
	case r.State == Frozen:
		return who + " was frozen by " + r.By + " and waits until it is thawed."
	case r.State == Suspended && r.Until != nil:
		return who + " waits: deliveries are suspended by " + r.By + " until " + r.Until.Format(human.TimeFormat) + ", or until zmctl resume."
	case r.State == Suspended:
		return who + " waits: deliveries are suspended by " + r.By + " until zmctl resume."
	case r.State == Held && r.Until != nil:
		return who + " is held by " + r.By + " until " + r.Until.Format(human.TimeFormat) + ", or until it is released."
	case r.State == Held:
		return who + " is held by " + r.By + " until it is released."
	case r.Channel == ChannelHold && r.Next == nil:
		return who + " is routed again when " + r.Host + " holds."
	case r.Next == nil:
		return who + " waits for its first attempt over " + r.Channel + "/" + r.Host + "."
	case r.Next.After(now):
		return who + " is tried again in " + human.Span(r.Next.Sub(now)) + ", at " + r.Next.Format(human.TimeFormat) + "."
	}
	return who + " is due since " + r.Next.Format(human.TimeFormat) + " and waits for its turn on " + r.Channel + "/" + r.Host + "."
}

func (x *Explainer) nextFinishing(m *Message) []string {
	open := 0
	for i := range m.Recipients {
		if m.Recipients[i].Open() {
			open++
		}
	}
	if open > 0 {
		return x.need("scheduler", fmt.Sprintf("Its message file is gone while %s open: they cannot be served. After a minute the scheduler moves the specification to quarantine/ and logs that.",
			human.Count(open, "recipient")+map[bool]string{true: " is", false: " are"}[open == 1]))
	}
	return x.need("scheduler", "It is done; the scheduler removes the specification.")
}
