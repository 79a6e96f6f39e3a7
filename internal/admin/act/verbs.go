package act

import (
	"slices"

	"zmailer/internal/admin/view"
	"zmailer/internal/postoffice"
	"zmailer/internal/postoffice/ledger"
	"zmailer/internal/postoffice/operations"
	"zmailer/internal/workspec"
)

// Verb is something that an operator does with mail.
type Verb struct {
	Name, Done string // "hold", "held"
	// Undo is what zmctl undo does afterwards; "": it cannot be undone.
	Undo string
	// takes reports whether the verb can change a recipient of a routed message.
	takes  func(a *action, r *view.Recipient) bool
	queued func(a *action, q operations.Request, name string) (operations.Result, error)
	// aside is what the verb does with a message that is not routed, by its state; it
	// returns what was done.
	aside map[string]onMessage
	// instead is the advice to an operator who names a message that is not routed.
	instead string
}

type onMessage func(*action, *view.Message) (string, error)

func takesOpen(_ *action, r *view.Recipient) bool { return r.Open() }

// The verbs for queued mail.
var (
	Hold = &Verb{
		Name: "hold", Done: "held", Undo: "releases them", takes: takesOpen, instead: "zmctl freeze puts it away",
		queued: func(a *action, q operations.Request, name string) (operations.Result, error) {
			return operations.Hold(q, name, a.Until)
		},
	}
	Release = &Verb{
		Name: "release", Done: "released", Undo: "holds again what is not delivered by then", instead: "only queued mail can be held",
		takes:  func(_ *action, r *view.Recipient) bool { return r.State == view.Held },
		queued: simply(operations.Release),
	}
	Freeze = &Verb{
		Name: "freeze", Done: "frozen", Undo: "thaws them",
		takes: func(_ *action, r *view.Recipient) bool { return r.Open() && r.State != view.Frozen },
		queued: func(_ *action, q operations.Request, name string) (operations.Result, error) {
			return operations.Freeze(q, name, workspec.CausePerson)
		},
		aside: map[string]onMessage{view.StateAccepted: (*action).freeze, view.StateDeferred: (*action).freeze},
	}
	Thaw = &Verb{
		Name: "thaw", Done: "thawed", Undo: "freezes again what is not delivered by then", instead: "it is not frozen",
		takes:  func(_ *action, r *view.Recipient) bool { return r.State == view.Frozen },
		queued: simply(operations.Thaw),
		aside:  map[string]onMessage{view.StateFrozen: (*action).recall},
	}
	Retry = &Verb{
		Name: "retry", Done: "due now", instead: "the router has it next; zmctl thaw is for what is frozen",
		takes: takesRetry, queued: retry, aside: map[string]onMessage{view.StateDeferred: (*action).recall},
	}
	Flush  = &Verb{Name: "flush", Done: "due now", takes: takesRetry, queued: retry}
	Expire = &Verb{
		Name: "expire", Done: "given up", Undo: "opens them again while no report has gone out", takes: takesOpen,
		queued: simply(operations.Expire), instead: "zmctl remove takes it out; only a routed message can have a report",
	}
	Remove = &Verb{
		Name: "remove", Done: "removed", Undo: "puts it back", takes: takesOpen, queued: simply(operations.Remove),
		aside: map[string]onMessage{
			view.StateAccepted: (*action).putAway, view.StateDeferred: (*action).putAway, view.StateFrozen: (*action).putAway,
			view.StateSetAside: (*action).putAway, view.StateCopy: (*action).putAway,
		},
	}
	Reroute = &Verb{
		Name: "reroute", Done: "routed again", takes: takesOpen, queued: reroute,
		aside: map[string]onMessage{view.StateDeferred: (*action).recall},
	}
)

// The verbs for mail that is put aside in one directory.
var (
	Resubmit   = &Verb{Name: "resubmit", Done: "given back to the router", aside: map[string]onMessage{view.StateDeferred: (*action).giveBack}}
	ThawAside  = &Verb{Name: "thaw", Done: "given to the router", aside: map[string]onMessage{view.StateFrozen: (*action).giveBack}}
	GiveMended = &Verb{Name: "resubmit", Done: "given to the router",
		aside: map[string]onMessage{view.StateSetAside: (*action).giveMended, view.StateCopy: (*action).refuseCopy}}
	// Discard moves it to removed/, where it stays for a while.
	Discard = &Verb{Name: "discard", Done: "discarded", Undo: "puts it back", aside: map[string]onMessage{
		view.StateFrozen: (*action).putAway, view.StateCopy: (*action).putAway, view.StateSetAside: (*action).discardOnly,
	}}
)

// Verbs returns the verbs for queued mail, in the order of the help text.
func Verbs() []*Verb {
	return []*Verb{Hold, Release, Freeze, Thaw, Retry, Flush, Expire, Remove, Reroute}
}

// VerbOf returns the verb of an operation on messages; nil if there is none of that name.
func VerbOf(name string) *Verb {
	for _, v := range slices.Concat(Verbs(), []*Verb{Resubmit, Discard}) {
		if v.Name == name {
			return v
		}
	}
	return nil
}

func simply(do func(operations.Request, string) (operations.Result, error)) func(*action, operations.Request, string) (operations.Result, error) {
	return func(_ *action, q operations.Request, name string) (operations.Result, error) { return do(q, name) }
}

func takesRetry(a *action, r *view.Recipient) bool {
	if r.State == view.Failed {
		return a.Failed && (a.Reported || !r.Reported)
	}
	return r.Open() && r.State != view.Held && r.State != view.Frozen
}

func retry(a *action, q operations.Request, name string) (operations.Result, error) {
	q.Failed, q.Told = a.Failed, a.Reported
	return operations.Retry(q, name)
}

func reroute(a *action, q operations.Request, name string) (operations.Result, error) {
	journal := ledger.New(a.po, ledger.Config{Role: "zmctl"})
	defer journal.Close()
	q.Submit = func(file string, n int) (postoffice.Accepted, error) { return journal.SubmitPrepared(a.po, file, n) }
	return operations.Reroute(q, name)
}
