package scheduler

import (
	"context"
	"errors"

	"zmailer/internal/postoffice"
	"zmailer/internal/postoffice/ledger"
	"zmailer/internal/stage/scheduler/thread"
	"zmailer/internal/workspec"
)

// ledgerID is the spool ID that the router has entered: by the name, because a file that
// was restored has another inode number, unless the number in the name was taken at random.
func (f *opened) ledgerID() postoffice.SpoolID {
	id := f.id
	if n, ok := postoffice.ParseName(f.Name); ok && !postoffice.IsRandom(n.Ino) {
		id.Ino = n.Ino
	}
	return id
}

// enterHalf enters what became of a message of which the specification alone is left.
// One that has lost bytes with the power tells nothing, nor does one whose number was taken
// at random: the account stays open, and zmctl check --ledger names the message.
func (s *Spool) enterHalf(f *opened) {
	n, ok := postoffice.ParseName(f.Name)
	if !ok || !f.spec.Complete || postoffice.IsRandom(n.Ino) {
		return
	}
	o := s.ends(f)
	o.Gone = int64(f.openRecipients())
	s.Ledger.Half(n.Ino, f.Info.ModTime, o)
}

// enterBack enters a message that a person has put back: its account is open again.
func (s *Spool) enterBack(f *opened, l *Loaded) {
	if f.removal == nil {
		return
	}
	back := false
	f.recipients(func(_ *workspec.Group, r *workspec.Recipient) { back = back || f.removal.Restored(r) })
	if back {
		s.Ledger.Routed(f.ledgerID(), l.Total, false)
	}
}

// submitReport submits a prepared report and enters that it was accepted.
func (s *Spool) submitReport(file string) (postoffice.Accepted, error) {
	return s.submitPrepared(file, 1)
}

// submitPrepared is submitReport for a message to n recipients.
func (s *Spool) submitPrepared(file string, n int) (postoffice.Accepted, error) {
	return s.Ledger.SubmitPrepared(s.PostOffice, file, n)
}

// enterVanished enters a message whose files were taken away under us, unless the
// message itself is there: then it is routed again.
func (e *engine) enterVanished(m *thread.Message) {
	name, id, total := m.Name(), idOf(m), int(m.Total)
	e.pool.do(func() {
		_, err := e.po.StatMessage(name)
		if errors.Is(err, postoffice.ErrGone) {
			_, err = e.po.StatMessage(e.po.Place(name))
		}
		if errors.Is(err, postoffice.ErrGone) {
			e.spool.Ledger.Gone(id, total, "vanished")
		}
	})
}

// startLedger settles what a loss of power has made of it.
func (e *engine) startLedger(ctx context.Context) {
	patience := ledger.StartPatience()
	patience.Before = e.spool.Recover
	done, err := e.spool.Ledger.Settle(ctx, patience)
	if err != nil {
		e.log.Error("ledger-trouble", "reason", err, "advice", "mail goes on; zmctl check --ledger tells what is missing")
	}
	if done.Why != "" {
		e.log.Info("ledger-settled", "reason", done.Why, "found", done.Found, "unknown", done.Unknown)
	}
}

// keepLedger folds the ledger beside everything else.
func (e *engine) keepLedger() {
	if e.keeping {
		return
	}
	e.keeping = true
	e.pool.do(func() {
		err := e.spool.Ledger.Keep()
		e.post(func() {
			e.keeping = false
			if err != nil && !e.unkept {
				e.log.Error("ledger-trouble", "reason", err, "advice", "mail goes on; the journals stay until that is mended")
			}
			e.unkept = err != nil
		})
	})
}
