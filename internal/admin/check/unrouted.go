package check

import (
	"errors"
	"strings"
	"time"

	"zmailer/internal/admin/view"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/human"
)

// DraftGrace is how long a submission may take before a file without a known writer
// counts as abandoned.
const DraftGrace = time.Hour

// unrouted inspects messages that are not in queue/: those being written, those that wait for a
// router, and those put aside.
type unrouted struct {
	*pass
	explain *view.Explainer
	mail    *duplicates
	reports map[string]string // file in public/ → specification that records it
}

// public inspects a file that is being written.
func (x *unrouted) public(f view.File) {
	k := x.KindOf(f)
	if k.State == view.StateAccepted {
		x.mail.note(f, postoffice.Name{Ino: f.Info.Ino}, RankPublic)
	}
	if !x.wants(f.Path()) {
		return
	}
	spec, isReport := x.reports[f.Name]
	switch {
	case k.State == "":
		x.foreign(f, "Not a regular file: no program uses it.")
	case isReport && k.State == view.StateWriting:
		x.add(about(f.Path(), "prepared report").say("It belongs to %s and is submitted when its record there is on disk.", spec))
	case k.State == view.StateAccepted:
		x.message(f, k)
	default:
		x.unfinished(f)
	}
}

func (x *unrouted) unfinished(f view.File) {
	age := x.Now.Sub(f.Info.ModTime)
	if strings.HasPrefix(f.Name, postoffice.CopyPrefix+".") {
		age = x.Now.Sub(f.Info.CTime) // its mtime is that of the original
	}
	r := about(f.Path(), view.StateWriting)
	if pid, held := x.Holder(f); held {
		x.add(r.say("It is being written by pid %d.", pid))
		return
	}
	r.say("It was written %s ago and is not complete; it has not been acknowledged to its submitter.", human.Span(age))
	switch {
	case age < DraftGrace:
	case strings.HasPrefix(f.Name, postoffice.CopyPrefix+"."):
		r.wrong(OrphanReport, "No specification names this copy for rerouting: the process that prepared it is dead, and the original still has the recipients. The scheduler removes it.")
	case strings.HasPrefix(f.Name, "report."):
		r.wrong(OrphanReport, "No specification names this report: the scheduler that prepared it is dead, and another report was or will be written. The scheduler removes it.")
	default:
		r.wrong(Unfinished, "No process will complete it: remove it, or zmctl check --repair puts it into quarantine/.")
	}
	x.add(r)
}

// router inspects a name in a router directory.
func (x *unrouted) router(f view.File) {
	k := x.KindOf(f)
	if k.State != "" {
		x.mail.note(f, k.Name, RankRouter)
	}
	if !x.wants(f.Path()) {
		return
	}
	ino, tries := postoffice.TriesMarker(f.Name)
	switch {
	case tries && f.Info.Mode.IsRegular():
		x.add(about(f.Path(), "tries").say("It counts the routers that have crashed while they routed message %d.", ino))
	case postoffice.IsPickup(f.Name) && f.Info.Mode.IsRegular():
		x.add(about(f.Path(), "pickup").say("A router copies a user's message here. If the router has died, another router makes the copy again or completes it."))
	case k.Work:
		x.work(f, k.Name)
	case k.State == "":
		x.foreign(f, "Routers take only regular files whose name is a number.")
	default:
		x.message(f, k)
	}
}

// work inspects router/..I-P.
func (x *unrouted) work(f view.File, n postoffice.Name) {
	o := x.Owner(n.Owner)
	r := about(f.Path(), "work file")
	switch {
	case o.Alive:
		r.say("It is being written by %s.", o)
	case x.Exists(f.Dir + "/" + n.String()):
		r.wrong(StaleWork, "Its writer is dead; it is removed when the message is returned to router/.")
	default:
		r.wrong(StaleWork, "Its writer is dead. A router moves it to transport/ if it is complete and its message is in queue/, otherwise removes it.")
	}
	x.add(r)
}

// load reads a message; nil if it has moved, or cannot be read, which is reported.
func (x *unrouted) load(f view.File, k view.Kind) *view.Message {
	m, err := x.LoadKind(f, k)
	if err == nil {
		return m
	}
	if !errors.Is(err, view.ErrMoved) {
		x.add(about(f.Path(), k.State).wrong(Unreadable, "%v", err))
	}
	return nil
}

func (x *unrouted) head(m *view.Message, f view.File) *report {
	r := about(f.Path(), m.State)
	r.id = m.ID
	return r.say("%s, %s old.", m.ID, human.Span(x.Now.Sub(m.Since)))
}

func (r *report) misnumbered(f view.File, n postoffice.Name, then string) {
	if !n.Fits(f.Info.Ino) {
		r.wrong(Misnumbered, "Its inode number is %d: it was copied or restored, and its spool ID is a new one. %s", f.Info.Ino, then)
	}
}

// message inspects a message file in public/ or router/.
func (x *unrouted) message(f view.File, k view.Kind) {
	m := x.load(f, k)
	if m == nil {
		return
	}
	r := x.head(m, f)
	switch {
	case m.Unreadable:
		r.wrong(Unreadable, "It cannot be read: %s.", m.Problem)
	case m.Problem != "" && x.PO.Submissions.IsInbox(f.Dir):
		r.wrong(Incomplete, "Problem: %s.", m.Problem)
	case m.Problem != "":
		r.wrong(BrokenMessage, "Problem: %s.", m.Problem)
	case k.State == view.StateClaimed && !m.Owner.Alive:
		r.wrong(StaleClaim, "")
	case k.State == view.StateAccepted && x.Runs("router") && x.Now.Sub(f.Info.CTime) > x.Stuck:
		r.wrong(NoProgress, "It has been here for %s although a router is running: read the router's log, and check that the router serves this postoffice.", human.Span(x.Now.Sub(f.Info.CTime)))
	}
	if postoffice.IsRouterDir(f.Dir) && !x.PO.Submissions.IsInbox(f.Dir) {
		r.misnumbered(f, k.Name, "A router renames it.")
	}
	x.old(r, m)
	r.text = append(r.text, x.explain.Next(m)...)
	x.add(r)
}

// aside inspects a name in deferred/, freezer/ or postman/.
func (x *unrouted) aside(f view.File) {
	k := x.KindOf(f)
	if k.State != view.StateCopy && k.State != "" {
		x.mail.note(f, k.Name, RankAside)
	}
	if !x.wants(f.Path()) {
		return
	}
	if view.IsReason(f) {
		x.add(about(f.Path(), "reason").say("It contains the full reason why the message with that number was set aside. It is removed with the message."))
		return
	}
	if k.State == "" {
		x.foreign(f, "Not the name of a message; no program uses it.")
		return
	}
	m := x.load(f, k)
	if m == nil {
		return
	}
	r := x.head(m, f)
	switch {
	case m.Unreadable:
		r.wrong(Unreadable, "It cannot be read: %s.", m.Problem)
	case m.Problem != "":
		r.say("Problem: %s.", m.Problem)
		if k.State == view.StateFrozen {
			r.wrong(BrokenMessage, "")
		}
	}
	if k.State == view.StateDeferred && !x.explain.TriesAgain(m) || k.State == view.StateSetAside {
		r.wrong(WaitsForPerson, "")
	}
	if k.State != view.StateCopy {
		x.old(r, m)
	}
	r.misnumbered(f, k.Name, "zmctl check --repair renames it.")
	r.text = append(r.text, x.explain.Next(m)...)
	x.add(r)
}

// defaultOld is the expiry that a clause has if it names none.
const defaultOld = 3 * 24 * time.Hour

// old warns of mail outside queue/ that is too old.
func (x *unrouted) old(r *report, m *view.Message) {
	limit := x.Older
	if limit <= 0 {
		limit = defaultOld
	}
	if age := x.Now.Sub(m.Since); age > limit {
		r.wrong(TooOld, "It is older than %s.", human.Span(limit))
	}
}
