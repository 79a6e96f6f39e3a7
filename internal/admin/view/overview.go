package view

import (
	"context"
	"errors"
	"io/fs"
	"slices"
	"strings"
	"time"

	"zmailer/internal/postoffice"
	"zmailer/internal/run/config"
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

// Survey counts what the directories hold, and finds what needs an operator.
type Survey struct {
	spool     *Spool
	settings  *config.Config
	resubmits config.Resubmission // when routers try deferred mail again; the zero value: never
}

// NewSurvey makes a Survey of a postoffice with its configuration.
func NewSurvey(s *Spool, settings *config.Config) *Survey {
	return &Survey{s, settings, resubmission(settings)}
}

func (v *Survey) everyDirectory() []string {
	return slices.Concat(v.spool.PO.Submissions.Inboxes(), v.spool.RouterDirs(), []string{postoffice.Queue, postoffice.Transport,
		postoffice.Deferred, postoffice.Freezer, postoffice.Postman, postoffice.Quarantine, postoffice.Removed, postoffice.Orders})
}

// Overview counts. The directories are read one after the other: a message that moves
// meanwhile may be counted twice, or in neither.
func (v *Survey) Overview(ctx context.Context, dir string) *Overview {
	st := &Overview{PostOffice: dir, Scheduler: v.spool.Runs("scheduler")}
	queue, transport := nameAges{}, nameAges{}
	if st.Scheduler {
		st.Counts = schedulerCounts(ctx, dir)
	}
	for _, top := range v.everyDirectory() {
		if st.Counts != nil && isHashed(top) {
			st.Directories = append(st.Directories, counted(top, st.Counts))
			continue
		}
		d := Directory{Name: top}
		err := v.spool.EachFile(top, func(f File) {
			n, ok := postoffice.ParseName(f.Name)
			age := v.spool.Now.Sub(f.Info.ModTime)
			switch {
			case !f.Info.Mode.IsRegular():
				return
			case top == postoffice.Queue && ok:
				queue[n] = age
			case top == postoffice.Transport && ok:
				transport[n] = age
			default:
				d.add(v.spool.StateIn(f), age)
				if top == postoffice.Deferred {
					v.routedAgain(&d, f)
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
		st.Recipients = v.countRecipients(ctx)
	}
	owners, err := v.spool.EveryOwner()
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
func (v *Survey) routedAgain(d *Directory, f File) {
	k := v.spool.KindOf(f)
	if k.State != StateDeferred || v.resubmits.IsOff() || k.Why == postoffice.WhyCrash {
		return
	}
	due := v.resubmits.Due(f.Info.ModTime, f.Info.CTime)
	if v.resubmits.IsDue(f.Info.ModTime, f.Info.CTime, v.spool.Now) {
		due = v.spool.Now
	}
	i := slices.IndexFunc(d.States, func(g StateCount) bool { return g.State == StateDeferred })
	if g := &d.States[i]; g.Next == nil || due.Before(*g.Next) {
		g.Next = &due
	}
}
