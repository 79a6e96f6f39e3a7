package main

import (
	"context"
	"errors"
	"slices"
	"strings"

	"zmailer/internal/postoffice"
	"zmailer/internal/run/human"
)

// kind is what a name means in its directory.
type kind struct {
	state string // of the message; "" if it is none
	name  postoffice.Name
	work  bool   // router/..I-P
	why   string // behind the inode number
}

// kind reads the name of a file that is not in queue/ or transport/.
func (s *spool) kind(f file) kind {
	if !f.Info.Mode.IsRegular() {
		return kind{}
	}
	if s.po.IsInbox(f.Dir) {
		if f.Dir != postoffice.Public && postoffice.IsSubmission(f.Name) {
			return kind{state: stateAccepted}
		}
		if f.Info.Mode&0o100 != 0 {
			return kind{state: stateAccepted}
		}
		return kind{state: stateWriting}
	}
	base := f.Name
	if f.Dir == postoffice.Deferred || f.Dir == postoffice.Freezer || f.Dir == postoffice.Postman {
		base = strings.TrimSuffix(base, postoffice.Renumbered)
	}
	var k kind
	routed := postoffice.IsRouterDir(f.Dir)
	switch {
	case routed:
		base, k.work = strings.CutPrefix(base, "..")
	case f.Dir == postoffice.Deferred, f.Dir == postoffice.Freezer:
		base, k.why, _ = strings.Cut(base, ".")
	case f.Dir == postoffice.Postman:
		var soft bool
		if base, k.why, soft = strings.Cut(base, "_"); soft {
			k.state = stateCopy
		}
	}
	n, ok := postoffice.ParseName(base)
	if !ok || n.Owner != 0 && !routed || k.work && n.Owner == 0 {
		return kind{}
	}
	k.name = n
	switch {
	case k.work || k.state != "":
	case routed && n.Owner != 0:
		k.state = stateClaimed
	case routed:
		k.state = stateAccepted
	case f.Dir == postoffice.Deferred:
		k.state = stateDeferred
	case f.Dir == postoffice.Freezer:
		k.state = stateFrozen
	case f.Dir == postoffice.Postman:
		k.state = stateSetAside
	}
	return k
}

// isReason tells the text that stands beside a message which was put aside.
func isReason(f file) bool {
	_, ok := postoffice.ReasonFile(f.Name)
	return ok && f.Info.Mode.IsRegular() && (f.Dir == postoffice.Deferred || f.Dir == postoffice.Freezer || f.Dir == postoffice.Postman)
}

// explain adds the reason in full to a message that is put aside.
func (s *spool) explain(m *message) {
	switch m.State {
	case stateDeferred, stateFrozen, stateSetAside, stateCopy:
	default:
		return
	}
	// What cannot be read is for another person.
	list, _ := s.po.Reasons(m.id)
	for _, r := range slices.Backward(list) {
		switch r.What {
		case postoffice.WasResubmitted, postoffice.WasThawed:
			continue
		}
		m.Reason = human.Clean(r.Text)
		return
	}
}

func (s *spool) loadKind(f file, k kind) (*message, error) {
	m, err := s.loadFile(f, k.state)
	if err != nil {
		return nil, err
	}
	m.Why = human.Clean(k.why)
	s.explain(m)
	for i := range m.Recipients {
		if k.state == stateCopy {
			m.Recipients[i].State = wentOn
		}
	}
	if k.name.Owner != 0 {
		o := s.owner(k.name.Owner)
		m.Owner = &o
		work, err := s.stat(f.Dir, ".."+k.name.String())
		if err == nil {
			m.Files = append(m.Files, work.path())
		}
	}
	return m, nil
}

// byID finds a message by its spool ID, in every directory. Files whose inode
// number is the ID's but whose time is not are other messages: they are told.
func (s *spool) byID(id postoffice.SpoolID) (found *message, others []postoffice.SpoolID, err error) {
	note := func(m *message) {
		switch {
		case m.id == id:
			found = m
		case m.message.Dir == "" && found == nil:
			// Finishing: the file whose time would tell is unlinked already.
			found = m
		case m.id.Ino == id.Ino && !slices.Contains(others, m.id):
			others = append(others, m.id)
		}
	}
	var errs []error
	for _, dir := range append(s.po.Inboxes(), s.walkOrder()...) {
		err := s.walkBelow(context.Background(), dir, "", func(r ref) error {
			n, _ := postoffice.ParseName(r.name)
			if r.ino != id.Ino && n.Ino != id.Ino {
				return nil
			}
			m, err := s.loadAny(r, found == nil)
			switch {
			case errors.Is(err, errMoved):
			case err != nil:
				errs = append(errs, err)
			case m != nil && (m.message.Dir == "" || m.id.Ino == id.Ino):
				note(m)
			}
			return nil
		})
		errs = append(errs, err)
	}
	return found, others, errors.Join(errs...)
}
