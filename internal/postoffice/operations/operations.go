// Package operations is what an operator or a rule says of queued recipients: hold and release,
// freeze and thaw, retry, expire, remove and undo, reroute.
//
// It owns the events of those words in a work specification and the tags that follow
// them. It works beside a running scheduler and its agents: everything is done under the
// specification's flock, and the scheduler is told by a note. The scheduler puts a
// message whose last open recipients were removed into removed/ (postoffice.Shelve).
//
// What survives a crash: the event is the decision, one appended line. Tags that do not
// follow it yet are set by the scheduler when it reads the file, and agents leave such
// recipients alone (workspec.Removal, workspec.Orders). A copy that goes to the router is
// prepared in public/ first, then named by its event, then submitted; whoever comes next
// goes on where that stopped (Resume).
//
// A recipient that an agent has at that moment is told as busy. The order is written for
// it, too, and holds when the agent gives it back undelivered; only retry and reroute
// leave it alone.
//
// Diagnostics: ErrMoved: the message went on while we looked; look for it again.
// ErrNothing: no recipient is there that the order could be about. Others are the
// disk's.
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
	// ErrNothing means that the order is about no one.
	ErrNothing = errors.New("nothing is to be done")
	// errRestored means that an undo that was broken off has done this part.
	errRestored = fmt.Errorf("%w: it is put back already", ErrNothing)
)

// Request is what every order needs.
type Request struct {
	PostOffice *postoffice.PostOffice
	ID         postoffice.SpoolID
	Now        time.Time
	Who        string // for the message's history: "zmctl, uid 0"
	Order      string // the order of many messages that this one is part of; "": none
	Reason     string // in the person's words
	// Report has the sender told of a removal or an expiry.
	Report bool
	// Match chooses recipients; nil: all that the order can be about.
	Match func(*workspec.Group, *workspec.Recipient) bool
	// Failed has Retry open those again, too, that have failed and whose sender was not
	// told yet; Told those of whom he was.
	Failed, Told bool
	// Submit is what Reroute submits a prepared copy for n recipients with; nil:
	// PostOffice.SubmitPrepared.
	Submit Submit
	// Silent leaves no note: the scheduler itself gives the order.
	Silent bool
}

// Result is what was done.
type Result struct {
	Changed []string // addresses that the order is about, but those in Busy
	Busy    []string // addresses that an agent delivers to at this moment
	Left    []string // addresses that cannot be routed again
	Doubt   []string // addresses to which an agent that died may have delivered it
	Name    string   // below transport/
	// To is the copy that was made for them (Reroute); of several the last.
	To postoffice.SpoolID
}

// told ends an operation on a queued message: the scheduler is told of a change.
func (q Request) told(res Result, verb string, err error) error {
	if !q.Silent && (err == nil || errors.Is(err, ErrNothing)) {
		// After a try that was broken off, too.
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

// looks is how often a file is opened that has lost its name while its lock was waited for.
const looks = 5

// errLookAgain means that a copy with a shorter history may have the file's name now.
var errLookAgain = errors.New("its history was summarised")

// replaced is what it means that another file has the name of a locked one.
func replaced(f *postoffice.Spec) error {
	if spec, err := read(f); err == nil && spec.Superseded() {
		return errLookAgain
	}
	return ErrMoved // somebody has edited it
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
	// While the lock was waited for, the scheduler may have put it away, or somebody
	// another file into its place.
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
