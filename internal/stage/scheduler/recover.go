package scheduler

import (
	"bytes"
	"errors"
	"slices"
	"time"

	"zmailer/internal/postoffice"
	"zmailer/internal/run/config"
	"zmailer/internal/workspec"
)

// settleUnfinished quarantines what nobody will finish in public/, once, at the
// start (A7). With StrictStart it refuses instead, as a *config.Error.
func settleUnfinished(c Config, po *postoffice.PostOffice) error {
	done, err := po.SettleUnfinished(time.Now(), postoffice.BootTime(), c.StrictStart)
	if unfinished := (*postoffice.UnfinishedError)(nil); errors.As(err, &unfinished) {
		return &config.Error{File: c.Dir, Reason: "the scheduler does not start", Err: err}
	}
	for _, d := range done {
		c.Log.Warn("recovered", "name", d.Name, "action", d.Action, "reason", d.Detail)
	}
	if err != nil {
		// Mail does not depend on it.
		c.Log.Warn("recovered", "name", postoffice.Public, "action", postoffice.Unreadable, "reason", err)
	}
	return nil
}

// Recover takes up what an interrupted hand-over, change of hash depth or finish
// left. Load does the rest, file by file. The engine does the same in parts, see lister.
func (s *Spool) Recover() error {
	list, err := s.PostOffice.RecoverQueue(s.Now())
	for _, r := range list {
		if r.Action != postoffice.Completed {
			s.tellRecovered([]postoffice.Recovered{r})
			continue
		}
		_, err := s.Load(r.Name)
		switch {
		case err == nil, errors.Is(err, postoffice.ErrGone), errors.Is(err, ErrMessageGone):
		case errors.As(err, new(*workspec.SyntaxError)), errors.Is(err, workspec.ErrUnknownFormat):
			// Told as specification-refused.
		default:
			s.Log.Error("disk", "name", r.Name, "reason", err)
		}
	}
	names, perr := s.PostOffice.ListPrepared(s.Now())
	if perr == nil {
		_, perr = s.sweepPrepared(names)
	}
	s.tellPrepared(perr)
	return err
}

// tellPrepared logs that what is prepared cannot be looked through. Nothing but room on
// the disk depends on it.
func (s *Spool) tellPrepared(err error) {
	if err != nil {
		s.Log.Error("recovered", "action", postoffice.Unreadable, "name", postoffice.Public, "reason", err)
	}
}

// tellRecovered logs what recovery did.
func (s *Spool) tellRecovered(list []postoffice.Recovered) {
	for _, r := range list {
		if r.Action == postoffice.Unreadable {
			s.Log.Error("recovered", "name", r.Name, "action", r.Action, "reason", r.Detail)
			continue
		}
		s.Log.Warn("recovered", "name", r.Name, "action", r.Action, "reason", r.Detail)
	}
}

// requeue gives messages in queue/ without a specification back to the router. Only for a
// time at which nothing else is changed.
func (s *Spool) requeue(names []string) {
	s.tellRecovered(s.PostOffice.RecoverMessages(names, s.Now()))
}

// Sweep removes what dead processes left in owners/ and what was in removed/ for long.
// It may read every specification, so it is not for a time at which others wait; other
// methods may run beside it, another Sweep may not.
func (s *Spool) Sweep() {
	s.sweepOwners()
	s.sweepRemoved()
}

// sweepRemoved drops messages that a person removed long ago (A15).
func (s *Spool) sweepRemoved() {
	if s.KeepRemoved <= 0 {
		return
	}
	done, err := s.PostOffice.SweepRemoved(s.Now(), s.KeepRemoved)
	for _, m := range done {
		s.Log.Info("dropped", "id", m.ID, "name", postoffice.Removed+"/"+m.Name, "removed", m.Since.Format(time.RFC3339))
	}
	if err != nil {
		s.Log.Error("recovered", "action", postoffice.Unreadable, "name", postoffice.Removed, "reason", err)
	}
}

// sweepPrepared removes those of some reports and copies that no specification names.
// They were listed (ListPrepared) while nothing was being prepared: a dead process has
// prepared them, or begun to, and the next try has written another, or will. Beside
// other changes: one that moves a specification while all are read has it left for
// the next look, and done is false.
func (s *Spool) sweepPrepared(names []string) (done bool, err error) {
	if len(names) == 0 {
		return true, nil
	}
	moves := s.moves.Load()
	err = s.PostOffice.ListTransport(func(name string) error {
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
		if err := s.PostOffice.DropPrepared(name); err != nil {
			return false, err
		}
		s.Log.Info("recovered", "action", postoffice.Swept, "name", postoffice.Public+"/"+name,
			"reason", "no specification names it; another is or was written")
	}
	return true, nil
}

// readRaw reads a specification that need not be whole; nil if it is gone.
func (s *Spool) readRaw(name string) (raw []byte, err error) {
	f, err := s.PostOffice.OpenSpec(name)
	if errors.Is(err, postoffice.ErrGone) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return f.Read()
}
