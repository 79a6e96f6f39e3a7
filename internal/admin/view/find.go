package view

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/human"
)

// explain adds the reason in full to a message that is put aside.
func (s *Spool) explain(m *Message) {
	switch m.State {
	case StateDeferred, StateFrozen, StateSetAside, StateCopy:
	default:
		return
	}
	// An operator without permission sees none.
	list, _ := s.PO.Aside.Reasons(m.SpoolID)
	for _, r := range slices.Backward(list) {
		switch r.What {
		case postoffice.WasResubmitted, postoffice.WasThawed:
			continue
		}
		m.Reason = human.Clean(r.Text)
		return
	}
}

func (s *Spool) LoadKind(f File, k Kind) (*Message, error) {
	m, err := s.LoadFile(f, k.State)
	if err != nil {
		return nil, err
	}
	m.Why = human.Clean(k.Why)
	s.explain(m)
	for i := range m.Recipients {
		if k.State == StateCopy {
			m.Recipients[i].State = wentOn
		}
	}
	if k.Name.Owner != 0 {
		o := s.Owner(k.Name.Owner)
		m.Owner = &o
		work, err := s.Stat(f.Dir, ".."+k.Name.String())
		if err == nil {
			m.Files = append(m.Files, work.Path())
		}
	}
	return m, nil
}

// ByID finds a message by its spool ID, in every directory. Files whose inode
// number is the ID's but whose time is not are other messages, which are returned.
func (s *Spool) ByID(id postoffice.SpoolID) (found *Message, others []postoffice.SpoolID, err error) {
	note := func(m *Message) {
		switch {
		case m.SpoolID == id:
			found = m
		case m.File.Dir == "" && found == nil:
			// Finishing: the file that has the time is unlinked already.
			found = m
		case m.SpoolID.Ino == id.Ino && !slices.Contains(others, m.SpoolID):
			others = append(others, m.SpoolID)
		}
	}
	var errs []error
	for _, dir := range append(s.PO.Submissions.Inboxes(), s.walkOrder()...) {
		err := s.refs(context.Background(), dir, func(r Ref) error {
			n, _ := postoffice.ParseName(r.name)
			if r.ino != id.Ino && n.Ino != id.Ino {
				return nil
			}
			m, err := s.loadAny(r, found == nil)
			switch {
			case errors.Is(err, ErrMoved):
			case err != nil:
				errs = append(errs, err)
			case m != nil && (m.File.Dir == "" || m.SpoolID.Ino == id.Ino):
				note(m)
			}
			return nil
		})
		errs = append(errs, err)
	}
	return found, others, errors.Join(errs...)
}

// locate finds a message wherever it is.
func (s *Spool) locate(verb string, id postoffice.SpoolID) (*Message, error) {
	m, others, err := s.ByID(id)
	if m == nil && err == nil {
		// It may have moved against the order in which we looked.
		m, others, err = s.ByID(id)
	}
	if m == nil && err == nil {
		m = Removals{Spool: s}.byID(id)
	}
	if m != nil {
		return m, nil
	}
	for _, o := range others {
		err = errors.Join(err, fmt.Errorf("%s %s: inode %d belongs to another message now, %s, written %s", verb, id, o.Ino, o, o.Time().Format(human.TimeFormat)))
	}
	return nil, err
}

// Shown finds a message to show.
func (s *Spool) Shown(id postoffice.SpoolID) (*Message, error) {
	m, err := s.locate("show", id)
	if m == nil && err == nil {
		err = fmt.Errorf("show %s: no file of that message is here; it was delivered, reported or removed", id)
	}
	return m, err
}
