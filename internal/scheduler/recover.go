package scheduler

import (
	"bytes"
	"errors"
	"slices"

	"zmailer/internal/postoffice"
)

// Recover takes up what an interrupted hand-over, change of hash depth or finish
// left. Load does the rest, file by file.
func (s *Spool) Recover() error {
	list, err := s.PostOffice.RecoverQueue(s.Now())
	for _, r := range list {
		switch r.Action {
		case postoffice.Completed:
			if _, err := s.Load(r.Name); err != nil && !errors.Is(err, postoffice.ErrGone) {
				s.Log.Error("disk", "name", r.Name, "reason", err)
			}
		case postoffice.Unreadable:
			s.Log.Error("recovered", "name", r.Name, "action", r.Action, "reason", r.Detail)
		default:
			s.Log.Warn("recovered", "name", r.Name, "action", r.Action, "reason", r.Detail)
		}
	}
	if serr := s.sweepReports(); serr != nil {
		// Nothing but room on the disk depends on it.
		s.Log.Error("recovered", "action", postoffice.Unreadable, "name", postoffice.Public, "reason", serr)
	}
	return err
}

// sweepReports removes reports that a dead scheduler has prepared, or begun to, and
// that no specification names: the next try to report has written another, or will.
// Only for a time at which this scheduler prepares none.
func (s *Spool) sweepReports() error {
	names, err := s.PostOffice.ListReports()
	if err != nil || len(names) == 0 {
		return err
	}
	err = s.PostOffice.ListTransport(func(name string) error {
		raw, err := s.readRaw(name)
		names = slices.DeleteFunc(names, func(report string) bool { return bytes.Contains(raw, []byte(" file="+report+" ")) })
		return err
	})
	if err != nil {
		return err // what cannot be read may name any of them
	}
	for _, name := range names {
		if err := s.PostOffice.DropPrepared(name); err != nil {
			return err
		}
		s.Log.Info("recovered", "action", postoffice.Swept, "name", postoffice.Public+"/"+name,
			"reason", "no specification names this report; another is or was written")
	}
	return nil
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
