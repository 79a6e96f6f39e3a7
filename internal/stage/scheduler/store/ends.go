package store

import (
	"fmt"
	"iter"
	"time"

	"zmailer/internal/postoffice"
	"zmailer/internal/postoffice/ledger"
	"zmailer/internal/stage/scheduler/events"
	"zmailer/internal/stage/scheduler/report"
	"zmailer/internal/workspec"
)

// ender removes messages whose recipients are all final and reported.
type ender struct {
	*Env
	reporter  *reporter
	decisions *decisions
	sweeper   *sweeper
}

// ends counts a message's recipients by their outcome; open ones are not counted.
func (s *reporter) ends(f *work) ledger.Outcomes {
	var e ledger.Outcomes
	expired := expiredIn(f.spec)
	for g, r := range f.spec.All() {
		switch {
		case r.Tag == workspec.TagOK && f.orders.Of(r.Offset).Rerouted() != nil:
			e.Rerouted++
		case r.Tag == workspec.TagOK:
			e.Delivered++
		case r.Tag != workspec.TagFailed:
		case f.removal.Removed(r):
			e.Removed++
		case expired[r.Offset]:
			e.Expired++
		case !report.Wanted(r, report.Failed) || f.reportTo(g) == "":
			e.Silent++
		default:
			e.Failed++
		}
	}
	return e
}

// unreportedBy counts the failed recipients that should be reported, that no report in the
// history covers and that are not marked as reported. The ledger keeps the number: it is found
// in another way than the one in which finishFailed decides that the message may end.
func (s *reporter) unreportedBy(f *work) (n int64) {
	reported := map[int64]bool{}
	for i := range f.spec.History {
		if e := &f.spec.History[i]; e.Event == workspec.EventReport && e.Get("kind") == report.Failed {
			for _, off := range e.Recipients() {
				reported[off] = true
			}
		}
	}
	for i := range f.spec.Diagnostics {
		if d := &f.spec.Diagnostics[i]; d.Reported {
			reported[d.Of] = true
		}
	}
	for g, r := range f.spec.All() {
		if r.Tag == workspec.TagFailed && !f.removal.Removed(r) && !reported[r.Offset] && report.Wanted(r, report.Failed) && f.reportTo(g) != "" {
			n++
		}
	}
	return n
}

// finish removes a message whose recipients are all final and reported, or moves it to
// removed/ if an operator removed the last of them. False: it was restored meanwhile.
// ErrUnreported: a failure is not reported yet; nothing was changed.
func (s *ender) finish(f *work) (done bool, err error) {
	// Operations whose notification comes too late.
	s.decisions.logOperationsIn(f)
	if ends := s.reporter.ends(f); ends.Failed+ends.Silent+ends.Expired+ends.Removed == 0 {
		// A delivered recipient is never opened again.
		s.ended(f.ledgerID(), ends, 0)
		done, err = true, s.unlink(f.Name, f.id, f.count())
	} else {
		// An operator opens failed and removed recipients again under the same lock.
		err = f.underLock(func() error {
			done, err = s.finishFailed(f)
			return err
		})
	}
	if err != nil || !done {
		return false, err
	}
	s.emit(events.Finished, "id", f.id, "name", f.Name)
	return true, nil
}

// finishFailed is finish for a message with recipients that were not delivered. The caller
// holds the specification's flock and has read it.
func (s *ender) finishFailed(f *work) (done bool, err error) {
	if f.undecided() {
		return false, nil
	}
	if len(f.unreported()) > 0 {
		return false, fmt.Errorf("end %s: %w", f.Name, ErrUnreported)
	}
	ends := s.reporter.ends(f)
	id, removed := f.removedID()
	if !removed || ends.Removed == 0 {
		s.ended(f.ledgerID(), ends, s.reporter.unreportedBy(f))
		return true, s.unlink(f.Name, f.id, f.count())
	}
	s.ended(id, ends, s.reporter.unreportedBy(f))
	// Crash: see Shelve. An undo finds the message in removed/ or here.
	if done, err = s.PostOffice.Removed.Shelve(f.Name, id); err != nil {
		return false, err
	}
	if done {
		s.Log.Info("removed", "id", id, "name", f.Name, "rcpts", ends.Removed)
		return true, nil
	}
	return true, s.unlink(f.Name, f.id, f.count())
}

// undecided reports whether a recipient is open, or has a tag that differs from an operator's
// decision: its copy may still be on its way to the router.
func (f *work) undecided() (open bool) {
	for _, r := range f.spec.All() {
		open = open || !final(r.Tag) || f.tagOf(r) != r.Tag
	}
	return open
}

// count returns the number of recipients.
func (f *work) count() (n int) {
	for range f.spec.All() {
		n++
	}
	return n
}

// Ending is a delivered message whose files are to be removed.
type Ending struct {
	ID    postoffice.SpoolID
	Name  string
	Total int   // recipients
	Err   error // of FinishDelivered
}

// FinishDelivered removes messages of which all recipients were delivered and nothing
// is owed, without a look into their specifications.
func (s *ender) FinishDelivered(list iter.Seq[*Ending]) {
	// Crash: as for ended.
	s.Ledger.DoneAll(func(yield func(postoffice.SpoolID, ledger.Outcomes) bool) {
		for x := range list {
			if !yield(x.ID, ledger.Outcomes{Delivered: int64(x.Total)}) {
				return
			}
		}
	})
	for x := range list {
		if x.Err = s.unlink(x.Name, x.ID, x.Total); x.Err == nil {
			s.emit(events.Finished, "id", x.ID, "name", x.Name)
		}
	}
}

// writtenBack is after how long a system has written everything to the disk; a power failure
// may repeat deliveries that are younger, and nothing else.
const writtenBack = 30 * time.Second

// unlink removes a message's files, in an order that survives a power failure if recipients
// may have been delivered long before others.
func (s *ender) unlink(name string, id postoffice.SpoolID, recipients int) error {
	if age := s.Now().Sub(id.Time()); recipients > 1 && (age > writtenBack || age < -writtenBack) {
		return s.PostOffice.Queue.FinishOld(name)
	}
	return s.PostOffice.Queue.Finish(name)
}

// ended enters a message's end in the ledger, before its files are removed.
func (s *ender) ended(id postoffice.SpoolID, e ledger.Outcomes, unreported int64) {
	// Crash: the files are still there, and the next scheduler enters it again.
	s.Ledger.DoneUnreported(id, e, unreported)
}

// ledgerID returns the spool ID that the router entered: by the name, because a restored file
// has another inode number, unless the number in the name is random.
func (f *work) ledgerID() postoffice.SpoolID {
	id := f.id
	if n, ok := postoffice.ParseName(f.Name); ok && !postoffice.IsRandom(n.Ino) {
		id.Ino = n.Ino
	}
	return id
}

// enterHalf enters the end of a message of which only the specification is left. Nothing is
// known from a specification that is incomplete, or whose number is random: the account stays
// open, and zmctl check --ledger names the message.
func (s *ender) enterHalf(f *work) {
	n, ok := postoffice.ParseName(f.Name)
	if !ok || !f.spec.Complete || postoffice.IsRandom(n.Ino) {
		return
	}
	o := s.reporter.ends(f)
	o.Gone = int64(f.openRecipients())
	s.Ledger.Half(n.Ino, f.Info.ModTime, o)
}

// enterBack enters a message that an operator restored: its account is open again.
func (s *loader) enterBack(f *work, l *Loaded) {
	if f.removal == nil {
		return
	}
	back := false
	for _, r := range f.spec.All() {
		back = back || f.removal.Restored(r)
	}
	if back {
		s.Ledger.Routed(f.ledgerID(), l.Total, false)
	}
}

// submitReport submits a prepared report and enters it in the ledger.
func (s *Env) submitReport(file string) (postoffice.Accepted, error) {
	return s.submitPrepared(file, 1)
}

// submitPrepared is submitReport for a message to n recipients.
func (s *Env) submitPrepared(file string, n int) (postoffice.Accepted, error) {
	return s.Ledger.SubmitPrepared(s.PostOffice, file, n)
}
