package act

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"zmailer/internal/admin/view"
	"zmailer/internal/postoffice"
	"zmailer/internal/postoffice/suspension"
)

// The verbs that suspend and resume. They are about mail that is still to come, too, and
// change no message.
var (
	suspendVerb = &Verb{Name: "suspend", Done: "suspended", Undo: "resumes it"}
	resumeVerb  = &Verb{Name: "resume", Done: "resumed", Undo: "suspends it again"}
	drainVerb   = &Verb{Name: "drain", Done: "drained", Undo: "accepts mail again"}
	acceptVerb  = &Verb{Name: "accept", Done: "accepted", Undo: "refuses mail again"}
)

func suspensionVerbs() []*Verb { return []*Verb{suspendVerb, resumeVerb, drainVerb, acceptVerb} }

// ErrSuspended means that the same is suspended already.
var ErrSuspended = errors.New("it is suspended already")

// ErrNotSuspended means that there is nothing to resume.
var ErrNotSuspended = errors.New("nothing that is suspended matches")

// Suspend suspends what s names; Who is set by the caller. The result has its order.
func Suspend(po *postoffice.PostOffice, s suspension.Suspension, keep time.Duration) (*suspension.Suspension, error) {
	now := time.Now()
	s.Since = now.Truncate(time.Second)
	s.Reason = view.OneLine(s.Reason)
	x, err := suspension.New(s)
	if err != nil {
		return nil, fmt.Errorf("suspend: %w", err)
	}
	list, err := suspension.Read(po)
	if err != nil {
		return nil, err
	}
	if other := same(list.Active(now), x); other != nil {
		return other, fmt.Errorf("suspend %s: %w: order %s, %s", x.Subject(), ErrSuspended, other.Order, other.Details(now))
	}
	o := &Operation{Time: now, Who: s.Who, Verb: verbFor(x, suspendVerb, drainVerb).Name, Selector: x.Subject(), Reason: s.Reason}
	if !s.Until.IsZero() {
		o.Until = s.Until.Format(time.RFC3339)
	}
	file, err := createOperation(po, o, now, keep)
	if err != nil {
		return nil, err
	}
	x.Order = o.ID
	err = suspension.Change(po, now, func(l *suspension.List) error {
		l.Add(x)
		return nil
	})
	return x, errors.Join(err, file.Close())
}

func verbFor(s *suspension.Suspension, deliveries, accepting *Verb) *Verb {
	if s.Accepting {
		return accepting
	}
	return deliveries
}

// same returns the suspension of a list that is about the same and has no earlier end.
func same(list []*suspension.Suspension, s *suspension.Suspension) *suspension.Suspension {
	i := slices.IndexFunc(list, func(x *suspension.Suspension) bool {
		return x.Accepting == s.Accepting && x.Subject() == s.Subject() && x.Until.Equal(s.Until)
	})
	if i < 0 {
		return nil
	}
	return list[i]
}

// Resumption says which suspensions are to end.
type Resumption struct {
	Orders []postoffice.OperationID
	Like   *suspension.Suspension // those that are about the same; nil: none
	// All: every suspension of deliveries; lines of the file that cannot be read go, too.
	All         bool
	Who, Reason string
	Keep        time.Duration
}

func (r *Resumption) has(s *suspension.Suspension) bool {
	return slices.Contains(r.Orders, s.Order) || r.All && !s.Accepting ||
		r.Like != nil && r.Like.Accepting == s.Accepting && r.Like.Subject() == s.Subject()
}

// Resume ends suspensions, and returns them with the order that takes note of that.
func Resume(po *postoffice.PostOffice, r Resumption) (ended []*suspension.Suspension, order postoffice.OperationID, err error) {
	now := time.Now()
	list, err := suspension.Read(po)
	if err != nil {
		return nil, "", err
	}
	var subjects []string
	var lines []byte
	for _, s := range list.Active(now) {
		if r.has(s) {
			ended = append(ended, s)
			subjects = append(subjects, s.Subject())
			lines = append(s.AppendLine(append(lines, suspensionWord+" "...)), '\n')
		}
	}
	for _, id := range r.Orders {
		if !slices.ContainsFunc(ended, func(s *suspension.Suspension) bool { return s.Order == id }) {
			return nil, "", fmt.Errorf("resume %s: %w", id, ErrNotSuspended)
		}
	}
	if len(ended) == 0 && (!r.All || len(list.Damaged) == 0) {
		return nil, "", fmt.Errorf("resume: %w", ErrNotSuspended)
	}
	verb := resumeVerb
	if len(ended) > 0 {
		verb = verbFor(ended[0], resumeVerb, acceptVerb)
	}
	o := &Operation{Time: now, Who: r.Who, Verb: verb.Name, Selector: strings.Join(subjects, "; "), Reason: r.Reason}
	file, err := createOperation(po, o, now, r.Keep)
	if err != nil {
		return nil, "", err
	}
	// Crash: the operation names suspensions that are still in force; nothing was resumed.
	if err = file.Append(lines); err == nil {
		err = suspension.Change(po, now, func(l *suspension.List) error {
			for _, s := range ended {
				l.Remove(l.Find(s.Order))
			}
			if r.All {
				l.Damaged = nil
			}
			return nil
		})
	}
	return ended, o.ID, errors.Join(err, file.Close())
}

// suspensionWord begins the lines of suspensions in the file of an operation.
const suspensionWord = "suspension"

// undoSuspension undoes an operation that has suspended or resumed something.
func (u *undo) undoSuspension(file *postoffice.OperationFile) error {
	err := suspension.Change(u.PostOffice, u.now, func(l *suspension.List) error {
		if u.op.Verb == suspendVerb.Name || u.op.Verb == drainVerb.Name {
			s := l.Find(u.op.ID)
			if s == nil || s.Over(u.now) {
				return fmt.Errorf("%w %s: it has ended", ErrUndo, u.op.ID)
			}
			l.Remove(s)
			u.result.Suspensions++
			return nil
		}
		for _, line := range u.op.Suspensions {
			s, err := suspension.ParseLine(line)
			if err != nil || s.Over(u.now) || l.Find(s.Order) != nil {
				continue // it would have ended by now, or is in force again
			}
			l.Add(s)
			u.result.Suspensions++
		}
		if u.result.Suspensions == 0 {
			return fmt.Errorf("%w %s: the suspensions would have ended by now", ErrUndo, u.op.ID)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return u.undone(file)
}
