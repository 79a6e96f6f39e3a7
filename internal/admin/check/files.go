package check

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"

	"zmailer/internal/admin/view"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/human"
)

// DraftGrace is how long a submission may take before a file without a known writer
// is taken for a left one.
const DraftGrace = time.Hour

// foreign tells of a name that is none of ours.
func (x *checker) foreign(f view.File, text string) {
	r := about(f.Path(), "unknown")
	what := ""
	switch m := f.Info.Mode; {
	case m.IsDir():
		what = "A directory."
		if names, err := x.FS.ReadDir(f.Path()); err == nil {
			what = fmt.Sprintf("A directory with %s.", human.Count(len(names), "name"))
		}
	case m&fs.ModeSymlink != 0:
		what = "A symbolic link."
	case m&fs.ModeNamedPipe != 0:
		what = "A pipe."
	case m&fs.ModeSocket != 0:
		what = "A socket."
	case !m.IsRegular():
		what = "A device."
	}
	if what != "" {
		r.say("%s", what)
	}
	x.tell(r.wrong(ForeignName, "%s", text).say("Remove it, or zmctl check --repair puts it into quarantine/."))
}

// public looks at a file that is being written.
func (x *checker) public(f view.File) {
	k := x.KindOf(f)
	if k.State == view.StateAccepted {
		x.note(f, postoffice.Name{Ino: f.Info.Ino}, RankPublic)
	}
	if !x.wants(f.Path()) {
		return
	}
	spec, isReport := x.reports[f.Name]
	switch {
	case k.State == "":
		x.foreign(f, "Not a regular file: nothing takes it up.")
	case isReport && k.State == view.StateWriting:
		x.tell(about(f.Path(), "prepared report").say("It belongs to %s and is submitted when its record there is safe.", spec))
	case k.State == view.StateAccepted:
		x.message(f, k)
	default:
		x.unfinished(f)
	}
}

func (x *checker) unfinished(f view.File) {
	age := x.Now.Sub(f.Info.ModTime)
	if strings.HasPrefix(f.Name, postoffice.CopyPrefix+".") {
		age = x.Now.Sub(f.Info.CTime) // it is made as old as what it was made of
	}
	r := about(f.Path(), view.StateWriting)
	if pid, held := x.Holder(f); held {
		x.tell(r.say("It is being written by pid %d.", pid))
		return
	}
	r.say("It was written %s ago and is not complete; its submitter has not been told yes.", human.Span(age))
	switch {
	case age < DraftGrace:
	case strings.HasPrefix(f.Name, postoffice.CopyPrefix+"."):
		r.wrong(OrphanReport, "No specification names this copy, which was to be routed again: who prepared it is dead, and its recipients are where they were. The scheduler removes it.")
	case strings.HasPrefix(f.Name, "report."):
		r.wrong(OrphanReport, "No specification names this report: the scheduler that prepared it is dead, and another report was or will be written. The scheduler removes it.")
	default:
		r.wrong(Unfinished, "Nobody will finish it: remove it, or zmctl check --repair puts it into quarantine/.")
	}
	x.tell(r)
}

// router looks at a name in a router directory.
func (x *checker) router(f view.File) {
	k := x.KindOf(f)
	if k.State != "" {
		x.note(f, k.Name, RankRouter)
	}
	if !x.wants(f.Path()) {
		return
	}
	ino, tries := postoffice.TriesMarker(f.Name)
	switch {
	case tries && f.Info.Mode.IsRegular():
		x.tell(about(f.Path(), "tries").say("It counts the routers that have ended while they had message %d.", ino))
	case postoffice.IsPickup(f.Name) && f.Info.Mode.IsRegular():
		x.tell(about(f.Path(), "pickup").say("A router copies here what a user has submitted. If it died, the next look of a router makes the copy again or ends it."))
	case k.Work:
		x.work(f, k.Name)
	case k.State == "":
		x.foreign(f, "Routers take only regular files whose name is a number.")
	default:
		x.message(f, k)
	}
}

// work looks at router/..I-P.
func (x *checker) work(f view.File, n postoffice.Name) {
	o := x.Owner(n.Owner)
	r := about(f.Path(), "work file")
	switch {
	case o.Alive:
		r.say("It is being written by %s.", o)
	case x.Exists(f.Dir + "/" + n.String()):
		r.wrong(StaleWork, "Its writer is dead; it is removed when the message is given back to router/.")
	default:
		r.wrong(StaleWork, "Its writer is dead. The next look of a router puts it in place if it is whole and its message is in queue/, else removes it.")
	}
	x.tell(r)
}

// load reads a message; nil if it has moved on, or cannot be read, which is told.
func (x *checker) load(f view.File, k view.Kind) *view.Message {
	m, err := x.LoadKind(f, k)
	if err == nil {
		return m
	}
	if !errors.Is(err, view.ErrMoved) {
		x.tell(about(f.Path(), k.State).wrong(Unreadable, "%v", err))
	}
	return nil
}

// head begins the report on a message.
func (x *checker) head(m *view.Message, f view.File) *report {
	r := about(f.Path(), m.State)
	r.id = m.ID
	return r.say("%s, %s old.", m.ID, human.Span(x.Now.Sub(m.Since)))
}

// Misnumbered tells of a name that is not the inode number.
func (r *report) misnumbered(f view.File, n postoffice.Name, then string) {
	if !n.Fits(f.Info.Ino) {
		r.wrong(Misnumbered, "Its inode number is %d: it was copied or restored, and its spool ID is a new one. %s", f.Info.Ino, then)
	}
}

// message looks at a message file in public/ or router/.
func (x *checker) message(f view.File, k view.Kind) {
	m := x.load(f, k)
	if m == nil {
		return
	}
	r := x.head(m, f)
	switch {
	case m.Unreadable:
		r.wrong(Unreadable, "It cannot be read: %s.", m.Problem)
	case m.Problem != "" && x.PO.Submissions.IsInbox(f.Dir):
		r.wrong(Incomplete, "Wrong: %s.", m.Problem)
	case m.Problem != "":
		r.wrong(BrokenMessage, "Wrong: %s.", m.Problem)
	case k.State == view.StateClaimed && !m.Owner.Alive:
		r.wrong(StaleClaim, "")
	case k.State == view.StateAccepted && x.Runs("router") && x.Now.Sub(f.Info.CTime) > x.Stuck:
		r.wrong(NoProgress, "It has been here for %s though a router lives: look at the router's log, and whether that router serves this postoffice.", human.Span(x.Now.Sub(f.Info.CTime)))
	}
	if postoffice.IsRouterDir(f.Dir) && !x.PO.Submissions.IsInbox(f.Dir) {
		r.misnumbered(f, k.Name, "A router gives it the right name.")
	}
	x.old(r, m)
	r.text = append(r.text, x.Next(m)...)
	x.tell(r)
}

// aside looks at a name in deferred/, freezer/ or postman/.
func (x *checker) aside(f view.File) {
	k := x.KindOf(f)
	if k.State != view.StateCopy && k.State != "" {
		x.note(f, k.Name, RankAside)
	}
	if !x.wants(f.Path()) {
		return
	}
	if view.IsReason(f) {
		x.tell(about(f.Path(), "reason").say("It says in full why the message of that number was put aside; cat it. It goes when the message does."))
		return
	}
	if k.State == "" {
		x.foreign(f, "No name that is made here; nothing takes it up.")
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
		r.say("Wrong: %s.", m.Problem)
		if k.State == view.StateFrozen {
			r.wrong(BrokenMessage, "")
		}
	}
	if k.State == view.StateDeferred && !x.TriesAgain(m) || k.State == view.StateSetAside {
		r.wrong(WaitsForPerson, "")
	}
	if k.State != view.StateCopy {
		x.old(r, m)
	}
	r.misnumbered(f, k.Name, "zmctl check --repair gives it the right name.")
	r.text = append(r.text, x.Next(m)...)
	x.tell(r)
}

// defaultOld is the expiry that a clause has if it names none.
const defaultOld = 3 * 24 * time.Hour

// old warns of mail outside of queue/ that is older than mail should become.
func (x *checker) old(r *report, m *view.Message) {
	limit := x.Older
	if limit <= 0 {
		limit = defaultOld
	}
	if age := x.Now.Sub(m.Since); age > limit {
		r.wrong(TooOld, "It is older than %s.", human.Span(limit))
	}
}
