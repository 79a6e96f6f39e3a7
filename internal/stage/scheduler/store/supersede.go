package store

import (
	"errors"
	"hash/fnv"
	"slices"
	"strings"

	"zmailer/internal/postoffice"
	"zmailer/internal/postoffice/operations"
	"zmailer/internal/stage/scheduler/builtin"
	"zmailer/internal/stage/scheduler/thread"
	"zmailer/internal/workspec"
)

// A message may supersede earlier ones of its sender: its specification names them by
// their Message-IDs, x lines (M45). What of them is still queued is taken out as zmctl
// remove does it, without a report, and zmctl undo restores it.

// origin is the submitter of a message: its sender and the uid that submitted it.
type origin struct{ sender, uid string }

// originOf returns false without a local submitter: the message came from
// outside, or all that it is for are lists with owners.
func originOf(spec *workspec.Spec) (o origin, ok bool) {
	if len(spec.ErrorTo) == 0 {
		return origin{}, false
	}
	o.sender = spec.ErrorTo[0]
	for i := range spec.Groups {
		s := &spec.Groups[i].Sender
		if s.Address == o.sender && s.Channel == "local" && s.Privilege != "" && s.Privilege != privilegeNobody {
			o.uid = s.Privilege
			return o, true
		}
	}
	return origin{}, false
}

// privilegeNobody is the uid of senders that are not local users.
const privilegeNobody = "65534"

// Superseding is a message that supersedes others.
type Superseding struct {
	id   postoffice.SpoolID
	ids  []string // Message-IDs
	from origin
}

// supersedes returns the messages that a specification supersedes; nil: none.
func supersedes(id postoffice.SpoolID, spec *workspec.Spec) *Superseding {
	if len(spec.Obsoletes) == 0 {
		return nil
	}
	from, ok := originOf(spec)
	if !ok {
		return nil
	}
	return &Superseding{id, spec.Obsoletes, from}
}

// Names reports whether a message is named and older.
func (o *Superseding) Names(ident string, stamp int64) bool {
	return stamp < o.id.MTime && slices.Contains(o.ids, ident)
}

// FindSuperseded returns the numbers of the specifications that a message supersedes.
func (s *Store) FindSuperseded(names []string, o *Superseding) (found []uint64) {
	for _, name := range names {
		f, err := s.openToLook(name)
		if err != nil {
			continue // it has ended, or is reported when it is used next
		}
		if number, ok := f.spec.Number(); ok && !f.noMessage && o.Names(f.spec.Ident, f.id.MTime) {
			found = append(found, number)
		}
	}
	return found
}

// Supersede removes the open recipients of a message that another one supersedes, if
// both are of one sender and one uid. changed: its specification is to be read again.
func (s *Store) Supersede(name string, o *Superseding) (changed bool, err error) {
	f, err := s.openToLook(name)
	if err != nil {
		return false, err
	}
	if f.noMessage || !f.spec.Complete || !o.Names(f.spec.Ident, f.id.MTime) {
		return false, nil
	}
	refused := func(why string) (bool, error) {
		s.Log.Warn("not-obsoleted", "id", f.id, "name", f.Name, "ident", f.spec.Ident, "by", o.id, "reason", why)
		return false, nil
	}
	switch from, ok := originOf(f.spec); {
	case !ok:
		return refused("its sender is not a local user")
	case from.uid != o.from.uid:
		return refused("it was submitted by uid " + from.uid + ", the other one by uid " + o.from.uid)
	case !strings.EqualFold(from.sender, o.from.sender):
		return refused("its sender is " + from.sender + ", that of the other one " + o.from.sender)
	}
	if slices.ContainsFunc(f.spec.History, func(e workspec.Event) bool { return e.Event == workspec.EventRestored }) {
		return refused("an operator restored it")
	}
	// Crash: before the operation's line nothing has happened, and it is done again when the
	// other message is read; with it the message is removed.
	res, err := operations.Remove(operations.Request{PostOffice: s.PostOffice, ID: f.id, Now: s.Now(), Who: "scheduler", Silent: true,
		Reason: "obsoleted by " + o.id.String()}, name)
	switch {
	case errors.Is(err, operations.ErrNothing), errors.Is(err, operations.ErrMoved):
		return false, nil
	case err != nil:
		return false, err
	}
	for _, a := range res.Changed {
		s.Log.Info("obsoleted", "id", f.id, "name", f.Name, "rcpt", a, "by", o.id)
	}
	for _, a := range res.Busy {
		s.Log.Info("obsoleted", "id", f.id, "name", f.Name, "rcpt", a, "by", o.id, "reason", "an agent delivers it; it is removed if that fails")
	}
	return true, nil
}

// senderKey returns a key of the sender, for taking turns at a host, with the origin of the
// message.
func senderKey(spec *workspec.Spec) uint32 {
	if len(spec.Groups) == 0 {
		return 0
	}
	from := spec.Groups[0].Sender.Address
	h := fnv.New32a()
	_, _ = h.Write([]byte(from)) // never fails
	return thread.SenderKey(h.Sum32(), whoseMail(spec))
}

// senderOf returns the sender's address; "" is the null sender.
func senderOf(spec *workspec.Spec) string {
	if len(spec.Groups) == 0 || spec.Groups[0].Sender.Channel == builtin.Error {
		return ""
	}
	return spec.Groups[0].Sender.Address
}

// whoseMail returns the origin of a message. A message without a sender is a report, whoever
// submitted it: vacation programs do, and an unauthenticated client chooses their recipient.
func whoseMail(spec *workspec.Spec) thread.Origin {
	switch from := &spec.Groups[0].Sender; {
	case from.Channel == builtin.Error:
		return thread.Report
	case spec.Own, from.Privilege != "" && from.Privilege != privilegeNobody:
		return thread.Own
	}
	return thread.Relayed
}
