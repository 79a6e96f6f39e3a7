// Package operations implements the operations of operators and rules on queued recipients:
// hold and release, freeze and thaw, retry, expire, remove and undo, reroute.
//
// It owns the events of those words in a work specification and the tags that follow
// them. It works beside a running scheduler and its agents: everything is done under the
// specification's flock, and a note informs the scheduler. The scheduler moves a
// message whose last open recipients were removed to removed/ (postoffice.Shelve).
//
// What survives a crash: the event is the decision, one appended line. Tags that do not
// follow it yet are set by the scheduler when it reads the file, and agents leave such
// recipients alone (workspec.Removal, workspec.Orders). A copy that goes to the router is
// prepared in public/ first, then named by its event, then submitted; Resume
// continues an interrupted one.
//
// A recipient that an agent is delivering to is returned as busy. The operation is written
// for it, too, and applies when the agent returns it undelivered; only retry and reroute
// skip it.
//
// Diagnostics: ErrMoved: the message moved meanwhile; find it again. ErrNothing: there is no
// recipient that the operation applies to. Other errors are those of the disk.
package operations

import (
	"errors"
	"fmt"
	"time"

	"zmailer/internal/postoffice"
	"zmailer/internal/workspec"
)

var (
	// ErrMoved means that the message is not where it was.
	ErrMoved = errors.New("it has moved on; try again")
	// ErrNothing means that the operation applies to no recipient.
	ErrNothing = errors.New("nothing is to be done")
	// errRestored means that an interrupted undo has done this part.
	errRestored = fmt.Errorf("%w: it is put back already", ErrNothing)
)

// Request contains the parameters of every operation.
type Request struct {
	PostOffice *postoffice.PostOffice
	ID         postoffice.SpoolID
	Now        time.Time
	Who        string // for the message's history: "zmctl, uid 0"
	Order      string // the operation on many messages that this one is part of; "": none
	Reason     string // as the operator gave it
	// Report sends the sender a report of a removal or an expiry.
	Report bool
	// Match selects recipients; nil: all that the operation applies to.
	Match func(*workspec.Group, *workspec.Recipient) bool
	// Failed makes Retry also open failed recipients that were not reported to the sender
	// yet; Told also those that were.
	Failed, Told bool
	// Submit is what Reroute submits a prepared copy for n recipients with; nil:
	// PostOffice.SubmitPrepared.
	Submit Submit
	// Silent leaves no note: the scheduler itself is the caller.
	Silent bool
}

// Result is the result of an operation on one message.
type Result struct {
	Changed []string // addresses that the operation applies to, except those in Busy
	Busy    []string // addresses that an agent delivers to at this moment
	Left    []string // addresses that cannot be routed again
	Doubt   []string // addresses to which an agent that died may have delivered the message
	Name    string   // below transport/
	// To is the copy that was made for them (Reroute); of several the last.
	To postoffice.SpoolID
}

// finish completes an operation on a queued message: it leaves a note for the scheduler.
func (q Request) finish(res Result, verb string, err error) error {
	if !q.Silent && (err == nil || errors.Is(err, ErrNothing)) {
		// Also after an earlier attempt that was interrupted.
		if nerr := q.PostOffice.Queue.NoteChange(res.Name); nerr != nil && !errors.Is(nerr, postoffice.ErrGone) {
			err = errors.Join(err, nerr)
		}
	}
	if err != nil {
		return fmt.Errorf("%s %s: %w", verb, q.ID, err)
	}
	return nil
}

// locked runs fn on transport/name under its flock, sure that it is still the message's.
func (q Request) locked(name string, fn func(*postoffice.Spec, *workspec.Spec) error) error {
	for range looks {
		if err := q.lockedOnce(name, fn); !errors.Is(err, errLookAgain) {
			return err
		}
	}
	return ErrMoved
}

// looks is how often a file is opened again that was renamed while we waited for its lock.
const looks = 5

// errLookAgain means that a copy with a shorter history may have the file's name now.
var errLookAgain = errors.New("its history was summarised")

// replaced returns the error for a locked file whose name another file has.
func replaced(f *postoffice.Spec) error {
	if spec, err := read(f); err == nil && spec.Superseded() {
		return errLookAgain
	}
	return ErrMoved // an editor has replaced it
}

func (q Request) lockedOnce(name string, fn func(*postoffice.Spec, *workspec.Spec) error) error {
	f, err := q.PostOffice.Queue.Open(name)
	if errors.Is(err, postoffice.ErrGone) {
		return ErrMoved
	}
	if err != nil {
		return err
	}
	// Closing gives the flock back; what must be durable was synced.
	defer f.Close()
	if err := f.Lock(); err != nil {
		return err
	}
	// While we waited for the lock, the scheduler may have moved the file, or an editor may
	// have replaced it.
	moved, err := f.Replaced()
	switch {
	case errors.Is(err, postoffice.ErrGone):
		return ErrMoved
	case err != nil:
		return err
	case moved:
		return replaced(f)
	}
	info, err := q.PostOffice.Queue.StatMessage(name)
	if errors.Is(err, postoffice.ErrGone) || err == nil && postoffice.IDOf(info) != q.ID {
		return ErrMoved
	}
	if err != nil {
		return err
	}
	spec, err := read(f)
	if err != nil {
		return err
	}
	return fn(f, spec)
}

func read(f *postoffice.Spec) (*workspec.Spec, error) {
	raw, err := f.Read()
	if err != nil {
		return nil, err
	}
	spec, err := workspec.Parse(raw)
	if err != nil {
		return nil, fmt.Errorf("read specification %s: %w", f.Name, err)
	}
	if !spec.Complete {
		return nil, fmt.Errorf("read specification %s: it is not complete", f.Name)
	}
	return spec, nil
}
