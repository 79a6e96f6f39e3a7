package store

import (
	"bytes"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"zmailer/internal/postoffice"
	"zmailer/internal/postoffice/alarm"
	"zmailer/internal/workspec"
)

// sweeper removes what crashed processes left in the postoffice.
type sweeper struct {
	*Env
	left  []postoffice.DeadOwner // numbers of dead processes that the last look found
	moves atomic.Int64           // of specifications, also those that were only tried
}

// Recover completes interrupted hand-overs, changes of hash depth and removals. Load does the
// rest, file by file. The engine does the same in parts, see lister.
func (s *Store) Recover() error {
	list, err := s.PostOffice.Queue.Recover(s.Now())
	for _, r := range list {
		if r.Action != postoffice.Completed {
			s.tellRecovered([]postoffice.Recovered{r})
			continue
		}
		_, err := s.Load(r.Name)
		switch {
		case err == nil, errors.Is(err, postoffice.ErrGone), errors.Is(err, ErrMessageGone):
		case errors.As(err, new(*workspec.SyntaxError)), errors.Is(err, workspec.ErrUnknownFormat):
			// The engine logs it as specification-refused.
		default:
			s.Log.Error("disk", "name", r.Name, "reason", err)
		}
	}
	names, perr := s.PostOffice.Submissions.ListPrepared(s.Now())
	if perr == nil {
		_, perr = s.SweepPrepared(names)
	}
	s.LogPreparedError(perr)
	return err
}

// LogPreparedError logs that prepared reports cannot be listed, which costs disk space only.
func (s *sweeper) LogPreparedError(err error) {
	if err != nil {
		s.Log.Error("recovered", "action", postoffice.Unreadable, "name", postoffice.Public, "reason", err)
	}
}

// tellRecovered logs what recovery did.
func (s *Env) tellRecovered(list []postoffice.Recovered) {
	for _, r := range list {
		if r.Action == postoffice.Unreadable {
			s.Log.Error("recovered", "name", r.Name, "action", r.Action, "reason", r.Detail)
			continue
		}
		s.Log.Warn("recovered", "name", r.Name, "action", r.Action, "reason", r.Detail)
	}
}

// Requeue returns messages in queue/ without a specification to the router. Nothing else may
// change the queue meanwhile.
func (s *sweeper) Requeue(names []string) {
	s.tellRecovered(s.PostOffice.Queue.RecoverMessages(names, s.Now()))
}

// Sweep removes the entries of dead processes in owners/ and old messages in removed/. It may
// read every specification, which takes long. Other methods may run beside it, but not another
// Sweep.
func (s *sweeper) Sweep() {
	s.sweepOwners()
	s.sweepRemoved()
}

// sweepRemoved drops messages that operators removed long ago (A15).
func (s *sweeper) sweepRemoved() {
	keep := s.current().KeepRemoved
	if keep <= 0 {
		return
	}
	done, err := s.PostOffice.Removed.Sweep(s.Now(), keep)
	for _, m := range done {
		s.Log.Info("dropped", "id", m.ID, "name", postoffice.Removed+"/"+m.Name, "removed", m.Since.Format(time.RFC3339))
	}
	if err != nil {
		s.Log.Error("recovered", "action", postoffice.Unreadable, "name", postoffice.Removed, "reason", err)
	}
}

// SweepPrepared removes those of some reports and copies that no specification names.
// They were listed (ListPrepared) while nothing was being prepared: a dead process has
// prepared them, or begun to, and the next try has written another, or will. Beside
// other changes: one that moves a specification while all are read has it left for
// the next look, and done is false.
func (s *sweeper) SweepPrepared(names []string) (done bool, err error) {
	if len(names) == 0 {
		return true, nil
	}
	moves := s.moves.Load()
	err = s.PostOffice.Queue.List(func(name string) error {
		raw, err := s.readRaw(name)
		names = slices.DeleteFunc(names, func(report string) bool { return bytes.Contains(raw, []byte(" file="+report+" ")) })
		return err
	})
	if err != nil {
		return false, err // what cannot be read may name any of them
	}
	if s.moves.Load() != moves {
		return false, nil
	}
	for _, name := range names {
		if err := s.PostOffice.Submissions.DropPrepared(name); err != nil {
			return false, err
		}
		s.Log.Info("recovered", "action", postoffice.Swept, "name", postoffice.Public+"/"+name,
			"reason", "no specification names it; another report is or was written")
	}
	return true, nil
}

// readRaw reads a specification that may be incomplete; nil: it is gone.
func (s *sweeper) readRaw(name string) (raw []byte, err error) {
	f, err := s.PostOffice.Queue.Open(name)
	if errors.Is(err, postoffice.ErrGone) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return f.Read()
}

// sweepOwners gives back the numbers that dead routers and agents have left, once
// nothing bears them. What was found left is remembered for the next time.
func (s *sweeper) sweepOwners() {
	if err := s.PostOffice.Owners.KeepSpares(); err != nil && !errors.Is(err, unix.ENOSPC) && !errors.Is(err, unix.EDQUOT) {
		s.Log.Error("recovered", "action", postoffice.Unreadable, "name", postoffice.Owners, "reason", err)
	}
	left, done, err := s.PostOffice.Owners.Sweep(workspec.LockOwners, s.left)
	s.left = left
	for _, r := range done {
		if r.Action == postoffice.Unreadable {
			s.Log.Error("recovered", "name", r.Name, "action", r.Action, "reason", r.Detail)
			continue
		}
		s.Log.Info("recovered", "name", r.Name, "action", r.Action, "reason", r.Detail)
	}
	if err != nil {
		// Nothing but numbers depends on it.
		s.Log.Error("recovered", "action", postoffice.Unreadable, "name", postoffice.Owners, "reason", err)
	}
}

// standing looks at the directories that are not the scheduler's own. linked are the files
// there that have another name, too.
func (s *Store) Standing(l alarm.Limits, now time.Time) (list []alarm.Alarm, linked []string) {
	for _, d := range l.Places() {
		if d.Limit == 0 {
			continue
		}
		st, err := s.PostOffice.Standing(d.Dir)
		if err != nil {
			s.Log.Error("disk", "name", d.Dir, "reason", err, "retry", "at the next look")
			continue
		}
		if a, ok := alarm.Age(d.Dir, st.Count, st.Oldest, d.Limit, now); ok {
			list = append(list, a)
		}
		for _, name := range st.Linked {
			linked = append(linked, d.Dir+"/"+name)
		}
	}
	return list, linked
}
