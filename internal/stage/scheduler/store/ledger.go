package store

import (
	"zmailer/internal/postoffice"
	"zmailer/internal/workspec"
)

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
	f.recipients(func(_ *workspec.Group, r *workspec.Recipient) { back = back || f.removal.Restored(r) })
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
