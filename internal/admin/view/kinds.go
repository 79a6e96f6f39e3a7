package view

import (
	"context"
	"errors"
	"slices"
	"strings"

	"zmailer/internal/postoffice"
	"zmailer/internal/run/human"
)

// Kind is what a name means in its directory.
type Kind struct {
	State string // of the message; "" if it is none
	Name  postoffice.Name
	Work  bool   // router/..I-P
	Why   string // behind the inode number
}

// KindOf reads the name of a file that is not in queue/ or transport/.
func (s *Files) KindOf(f File) Kind {
	if !f.Info.Mode.IsRegular() {
		return Kind{}
	}
	if s.PO.Submissions.IsInbox(f.Dir) {
		if f.Dir != postoffice.Public && postoffice.IsSubmission(f.Name) {
			return Kind{State: StateAccepted}
		}
		if f.Info.Mode&0o100 != 0 {
			return Kind{State: StateAccepted}
		}
		return Kind{State: StateWriting}
	}
	base := f.Name
	if f.Dir == postoffice.Deferred || f.Dir == postoffice.Freezer || f.Dir == postoffice.Postman {
		base = strings.TrimSuffix(base, postoffice.Renumbered)
	}
	var k Kind
	routed := postoffice.IsRouterDir(f.Dir)
	switch {
	case routed:
		base, k.Work = strings.CutPrefix(base, "..")
	case f.Dir == postoffice.Deferred, f.Dir == postoffice.Freezer:
		base, k.Why, _ = strings.Cut(base, ".")
	case f.Dir == postoffice.Postman:
		var soft bool
		if base, k.Why, soft = strings.Cut(base, "_"); soft {
			k.State = StateCopy
		}
	}
	n, ok := postoffice.ParseName(base)
	if !ok || n.Owner != 0 && !routed || k.Work && n.Owner == 0 {
		return Kind{}
	}
	k.Name = n
	switch {
	case k.Work || k.State != "":
	case routed && n.Owner != 0:
		k.State = StateClaimed
	case routed:
		k.State = StateAccepted
	case f.Dir == postoffice.Deferred:
		k.State = StateDeferred
	case f.Dir == postoffice.Freezer:
		k.State = StateFrozen
	case f.Dir == postoffice.Postman:
		k.State = StateSetAside
	}
	return k
}

// IsReason reports whether a file is the reason beside a message that was put aside.
func IsReason(f File) bool {
	_, ok := postoffice.ReasonFile(f.Name)
	return ok && f.Info.Mode.IsRegular() && (f.Dir == postoffice.Deferred || f.Dir == postoffice.Freezer || f.Dir == postoffice.Postman)
}

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
		err := s.walkBelow(context.Background(), dir, "", func(r Ref) error {
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
