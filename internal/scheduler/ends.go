package scheduler

import (
	"time"

	"zmailer/internal/ledger"
	"zmailer/internal/postoffice"
	"zmailer/internal/workspec"
)

// ends counts what became of a file's recipients. Each is in one number, those that are
// open in none.
func (s *Spool) ends(f *opened) ledger.Outcomes {
	var e ledger.Outcomes
	expired := map[int64]bool{}
	for i := range f.spec.History {
		if h := &f.spec.History[i]; h.Event == workspec.EventExpired || h.Event == workspec.EventRetry {
			for _, off := range h.Recipients() {
				expired[off] = h.Event == workspec.EventExpired || expired[off] && h.Get("reopen") == ""
			}
		}
	}
	f.recipients(func(g *workspec.Group, r *workspec.Recipient) {
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
		case !wanted(r, kindFailed) || f.reportTo(g) == "":
			e.Silent++
		default:
			e.Failed++
		}
	})
	return e
}

// finish removes a message whose recipients are all final and reported, or puts it
// away if a person has removed the last of them. False: it was put back meanwhile.
func (s *Spool) finish(f *opened) (bool, error) {
	// Those whose note comes too late.
	s.ordersIn(f)
	ends := s.ends(f)
	if id, ok := f.removedID(); ok && ends.Removed > 0 {
		s.ended(id, ends)
		done, err := s.shelve(f, id)
		if err != nil {
			return false, err
		}
		if done {
			s.Log.Info("removed", "id", id, "name", f.Name, "rcpts", ends.Removed)
			return true, nil
		}
		if f.openRecipients() > 0 {
			return false, nil
		}
	} else {
		s.ended(f.ledgerID(), ends)
	}
	recipients := 0
	f.recipients(func(*workspec.Group, *workspec.Recipient) { recipients++ })
	err := error(nil)
	if ends.Failed+ends.Silent+ends.Expired+ends.Removed == 0 {
		err = s.unlink(f.Name, f.id, recipients)
	} else {
		// A person opens what has failed again under the same lock.
		open := false
		err = f.underLock(func() error {
			if open = f.openRecipients() > 0; open {
				return nil
			}
			return s.unlink(f.Name, f.id, recipients)
		})
		if open {
			s.Ledger.Routed(f.ledgerID(), recipients, false)
			return false, err
		}
	}
	if err != nil {
		return false, err
	}
	s.Log.Debug("finished", "id", f.id, "name", f.Name)
	return true, nil
}

// finishDelivered removes messages of which all recipients were delivered and nothing
// is owed, without a look into their specifications.
func (s *Spool) finishDelivered(list []ending) {
	// Crash: as for ended.
	s.Ledger.DoneAll(func(yield func(postoffice.SpoolID, ledger.Outcomes) bool) {
		for i := range list {
			if m := list[i].m; !yield(idOf(m), ledger.Outcomes{Delivered: int64(m.Total)}) {
				return
			}
		}
	})
	for i := range list {
		x := &list[i]
		id, name := idOf(x.m), x.m.Name()
		if x.err = s.unlink(name, id, int(x.m.Total)); x.err == nil {
			s.Log.Debug("finished", "id", id, "name", name)
		}
	}
}

// writtenBack is after what time a system has written everything to the disk by
// itself; a loss of power may repeat what was delivered since, nothing else.
const writtenBack = 30 * time.Second

// unlink removes a message's files, in an order that a loss of power keeps if some of
// its recipients may have got it before others were tried.
func (s *Spool) unlink(name string, id postoffice.SpoolID, recipients int) error {
	if age := s.Now().Sub(id.Time()); recipients > 1 && (age > writtenBack || age < -writtenBack) {
		return s.PostOffice.FinishOld(name)
	}
	return s.PostOffice.Finish(name)
}

// ended tells of a message's end before its files are removed.
func (s *Spool) ended(id postoffice.SpoolID, e ledger.Outcomes) {
	// Crash: the files are there still, and the next life tells it again.
	s.Ledger.Done(id, e)
}
