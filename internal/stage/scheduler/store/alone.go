package store

import (
	"bytes"
	"errors"
	"fmt"
	"time"

	"zmailer/internal/postoffice"
)

// ErrMessageGone means that a specification has open recipients and its message is missing:
// its file was removed, or is being moved.
var ErrMessageGone = errors.New("the message is not in queue/")

// alone handles a specification without its message. again: the name to load instead.
// Without an error and a name the specification is gone.
func (s *ender) alone(f *work) (again string, err error) {
	s.sweeper.moves.Add(1)
	switch to, err := s.PostOffice.Queue.Reunite(f.Name); {
	case err == nil:
		s.Log.Info("recovered", "name", to, "action", postoffice.MoveEnded, "reason", "from "+f.Name)
		return to, nil
	case errors.Is(err, postoffice.ErrOccupied):
		return "", s.quarantine(f.Name, "copy", "its message has another specification")
	case !errors.Is(err, postoffice.ErrGone):
		return "", err
	}
	if again, done, err := s.aloneRemoved(f); again != "" || done || err != nil {
		return again, err
	}
	if len(f.spec.Groups) == 0 && len(bytes.Trim(f.raw, "\x00")) > 0 {
		return "", s.quarantine(f.Name, "no-message", "it has no recipients and no message")
	}
	if f.openRecipients() > 0 {
		return "", fmt.Errorf("read specification %s: %w", f.Name, ErrMessageGone)
	}
	// The message was being finished, or its file was removed before its reports were sent.
	if err := s.reporter.reportOwed(f); err != nil {
		return "", err
	}
	if err := f.read(); err != nil {
		return "", err
	}
	if err := s.reporter.refuseEnd(f); err != nil {
		return "", err
	}
	s.enterHalf(f)
	s.Log.Info("recovered", "name", f.Name, "action", postoffice.Completed)
	return "", s.PostOffice.Queue.Finish(f.Name)
}

// aloneRemoved completes a move to removed/ or back that a crash interrupted (A15).
func (s *ender) aloneRemoved(f *work) (again string, done bool, err error) {
	id, ok := f.removedID()
	if !ok {
		return "", false, nil
	}
	if f.openRecipients() > 0 {
		err := s.PostOffice.Removed.UnshelveMessage(id, f.Name)
		switch {
		case errors.Is(err, postoffice.ErrGone):
			return "", false, nil
		case err != nil:
			return "", false, err
		}
		s.Log.Info("recovered", "id", id, "name", f.Name, "action", "put-back", "reason", "it was being put back")
		return f.Name, false, nil
	}
	done, err = s.shelve(f, id)
	if done && err == nil {
		s.Log.Info("recovered", "id", id, "name", f.Name, "action", "put-away", "reason", "it was being removed")
	}
	return "", done, err
}

// removedID returns the spool ID in the history of a removed message.
func (f *work) removedID() (postoffice.SpoolID, bool) {
	if f.removal == nil {
		return postoffice.SpoolID{}, false
	}
	id, err := postoffice.ParseSpoolID(f.removal.ID)
	return id, err == nil
}

// openRecipients counts the recipients that are not final by tag or by decision.
func (f *work) openRecipients() int {
	n := 0
	for _, r := range f.spec.All() {
		if !final(f.tagOf(r)) {
			n++
		}
	}
	return n
}

// away returns how long the message lay in removed/.
func (f *work) away() time.Duration {
	if f.removal == nil {
		return 0
	}
	return f.removal.Away
}

// shelve moves a message to removed/ whose last open recipients an operator removed. done is
// false if it was restored meanwhile, or there is no message to keep.
func (s *ender) shelve(f *work, id postoffice.SpoolID) (done bool, err error) {
	// An undo reopens recipients under the same lock.
	err = f.underLock(func() (err error) {
		if f.openRecipients() == 0 {
			done, err = s.PostOffice.Removed.Shelve(f.Name, id)
		}
		return err
	})
	return done, err
}

// reportOwed reports the failures and successes that were not reported yet.
func (s *reporter) reportOwed(f *work) error {
	if err := s.resume(f); err != nil {
		return err
	}
	a := s.account(f)
	if len(a.missing) > 0 {
		if err := s.explain(f); err != nil {
			return err
		}
		a = s.account(f)
	}
	return s.reportAll(f, a.owed, nil)
}

// Abandon gives up a specification whose message does not come back: it sends the reports
// that are due, logs the open recipients, and moves the specification to quarantine/. If the
// message is there by now, it does nothing.
func (s *Store) Abandon(name string) error {
	f, err := s.open(name)
	if err != nil {
		return err
	}
	defer f.close()
	if !f.noMessage {
		return nil
	}
	if again, err := s.alone(f); again != "" || err == nil || !errors.Is(err, ErrMessageGone) {
		return err
	}
	if err := s.reportOwed(f); err != nil {
		return err
	}
	for _, r := range f.spec.All() {
		if !final(r.Tag) {
			s.Log.Error("message-lost", "name", f.Name, "rcpt", r.Address, "channel", r.Channel, "host", r.Host,
				"reason", "the file in queue/ was removed while this recipient was open",
				"advice", "to go on, put message and specification back from a copy and quarantine/; else inform the sender")
		}
	}
	s.enterHalf(f)
	return s.quarantine(f.Name, "message-gone", "the message is gone and recipients are open")
}

// quarantine moves a specification that cannot be used to quarantine/.
func (s *ender) quarantine(name, why, reason string) error {
	to, err := s.PostOffice.Aside.Quarantine(postoffice.Transport+"/"+name, why)
	if err != nil {
		return err
	}
	s.Log.Error("recovered", "name", name, "action", postoffice.Quarantined, "reason", reason+"; it is "+to+" now")
	return nil
}
