package view

import (
	"strings"

	"zmailer/internal/postoffice"
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

// StateIn names a file's state for the counts.
func (s *Processes) StateIn(f File) string {
	switch f.Dir {
	case postoffice.Queue, postoffice.Transport:
		return "no spool file"
	case postoffice.Quarantine:
		return "quarantined"
	case postoffice.Orders:
		if IsOrder(f) {
			return "order"
		}
		return "no order"
	case postoffice.Removed:
		switch {
		case !IsRemoved(f):
			return "no spool file"
		case strings.HasSuffix(f.Name, ".spec"):
			return "specification"
		}
		return StateRemoved
	}
	k := s.KindOf(f)
	switch {
	case IsReason(f):
		return "reason"
	case k.Work:
		return "work file"
	case k.State == "":
		return "no spool file"
	case k.State == StateClaimed && !s.Owner(k.Name.Owner).Alive:
		return "claimed by the dead"
	}
	return k.State
}
