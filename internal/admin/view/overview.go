package view

import (
	"context"
	"errors"
	"io/fs"
	"slices"
	"strings"
	"time"

	"zmailer/internal/postoffice"
	"zmailer/internal/wire/mailq"
)

// Overview is what the directories hold.
type Overview struct {
	PostOffice  string      `json:"postoffice"`
	Directories []Directory `json:"directories"`
	// Recipients are those of queued mail, by state; nil if they were not counted.
	Recipients []RecipientCount `json:"recipients,omitempty"`
	Uncounted  bool             `json:"recipients_not_counted,omitempty"`
	// Counts are those of the scheduler; where there are any, queue/ and transport/ use them.
	Counts    *mailq.StatusInfo `json:"scheduler_counts,omitempty"`
	Owners    []Owner           `json:"owners"`
	Scheduler bool              `json:"scheduler_runs"`
}

// Directory is one of the postoffice's directories.
type Directory struct {
	Name    string       `json:"name"`
	Files   int          `json:"files"` // regular files, whatever their names
	States  []StateCount `json:"states"`
	Problem string       `json:"problem,omitempty"`
}

// StateCount is the files of one directory in one state.
type StateCount struct {
	State         string `json:"state"`
	Files         int    `json:"files"`
	OldestSeconds int64  `json:"oldest_seconds"`
	// Next is when the first of them is routed again, if routers do that.
	Next *time.Time `json:"next,omitempty"`
}

func (s *Spool) everyDirectory() []string {
	return slices.Concat(s.PO.Submissions.Inboxes(), s.RouterDirs(), []string{postoffice.Queue, postoffice.Transport,
		postoffice.Deferred, postoffice.Freezer, postoffice.Postman, postoffice.Quarantine, postoffice.Removed, postoffice.Orders})
}

// Overview counts. The directories are read one after the other: a message that moves
// meanwhile may be counted twice, or in neither.
func (s *Spool) Overview(ctx context.Context, dir string) *Overview {
	st := &Overview{PostOffice: dir, Scheduler: s.Runs("scheduler")}
	queue, transport := nameAges{}, nameAges{}
	if st.Scheduler {
		st.Counts = schedulerCounts(ctx, dir)
	}
	for _, top := range s.everyDirectory() {
		if st.Counts != nil && isQueue(top) {
			st.Directories = append(st.Directories, counted(top, st.Counts))
			continue
		}
		d := Directory{Name: top}
		err := s.EachFile(top, func(f File) {
			n, ok := postoffice.ParseName(f.Name)
			age := s.Now.Sub(f.Info.ModTime)
			switch {
			case !f.Info.Mode.IsRegular():
				return
			case top == postoffice.Queue && ok:
				queue[n] = age
			case top == postoffice.Transport && ok:
				transport[n] = age
			default:
				d.add(s.StateIn(f), age)
				if top == postoffice.Deferred {
					d.routedAgain(s, f)
				}
			}
			d.Files++
		})
		switch {
		case errors.Is(err, fs.ErrNotExist) && keptDirectory(top):
			continue // a postoffice of an earlier version
		case err != nil:
			d.Problem = err.Error()
		}
		st.Directories = append(st.Directories, d)
	}
	for i := range st.Directories {
		d := &st.Directories[i]
		switch {
		case st.Counts != nil:
		case d.Name == postoffice.Queue:
			d.compare(queue, transport, StateHandedOver)
		case d.Name == postoffice.Transport:
			d.compare(transport, queue, StateFinishing)
		}
		slices.SortFunc(d.States, func(a, b StateCount) int { return strings.Compare(a.State, b.State) })
	}
	if st.Uncounted = st.Counts != nil || len(transport) > readLimit; !st.Uncounted {
		st.Recipients = s.countRecipients(ctx)
	}
	owners, err := s.EveryOwner()
	if err != nil {
		st.Owners = append(st.Owners, Owner{Says: err.Error()})
	}
	slices.SortFunc(owners, func(a, b Owner) int { return a.Number - b.Number })
	st.Owners = append(st.Owners, owners...)
	return st
}

// nameAges are the names in queue/ or transport/, with their ages.
type nameAges map[postoffice.Name]time.Duration

// compare counts names by whether the other directory has them, too.
func (d *Directory) compare(own, other nameAges, alone string) {
	for n, age := range own {
		state := alone
		if _, both := other[n]; both {
			state = StateQueued
		}
		d.add(state, age)
	}
}

// keptDirectory reports whether a directory is made when it is needed first.
func keptDirectory(dir string) bool {
	return dir == postoffice.Quarantine || dir == postoffice.Removed || dir == postoffice.Orders
}

// StateIn names a file's state for the counts.
func (s *Spool) StateIn(f File) string {
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

func (d *Directory) add(state string, age time.Duration) {
	i := slices.IndexFunc(d.States, func(g StateCount) bool { return g.State == state })
	if i < 0 {
		d.States = append(d.States, StateCount{State: state})
		i = len(d.States) - 1
	}
	g := &d.States[i]
	g.Files++
	g.OldestSeconds = max(g.OldestSeconds, int64(age/time.Second))
}

// routedAgain notes when a deferred message is routed again.
func (d *Directory) routedAgain(s *Spool, f File) {
	k := s.KindOf(f)
	if k.State != StateDeferred || s.resubmits.IsOff() || k.Why == postoffice.WhyCrash {
		return
	}
	due := s.resubmits.Due(f.Info.ModTime, f.Info.CTime)
	if s.resubmits.IsDue(f.Info.ModTime, f.Info.CTime, s.Now) {
		due = s.Now
	}
	i := slices.IndexFunc(d.States, func(g StateCount) bool { return g.State == StateDeferred })
	if g := &d.States[i]; g.Next == nil || due.Before(*g.Next) {
		g.Next = &due
	}
}
