package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"zmailer/internal/postoffice"
	"zmailer/internal/postoffice/alarm"
	"zmailer/internal/run/config"
	"zmailer/internal/run/human"
	"zmailer/internal/ui/term"
	"zmailer/internal/wire/mailq"
)

func statusCommand() *cli.Command {
	return &cli.Command{
		Name:      "status",
		Usage:     "count the files of each directory, and tell which daemons live",
		UsageText: "zmctl status [--json]",
		Description: `Counts what is in each directory now, with the age of the oldest message of each
state, the recipients of queued mail by their states, and lists the processes that hold
an owner number. The counts are those of the disk: ls | wc -l gives the same. Where more
than 20000 messages are queued and the scheduler runs, those of queue/ and transport/ are
those of the scheduler, which are at hand; zmctl check counts the files. States are explained
in docs/spool.md. zmctl removed, zmctl orders and, for quarantine/, zmctl check show what
daemons never take up. Daemons that systemd or zmctl run has started stand there
with their age, and with what is wrong with them. Recipients are counted while there are
at most 20000 specifications; zmctl queue --counts counts more.

At the end stand the alarms, if there are any: what is too old, makes no progress, or
belongs to nothing (docs/alarms.md).

Exit codes: 0 told, 1 there are alarms, a daemon has ended that nobody has stopped, or it
cannot be told, 64 bad arguments, 78 bad configuration or no postoffice.`,
		Flags:  []cli.Flag{&cli.BoolFlag{Name: "json", Usage: "print one JSON object"}},
		Action: runStatus,
	}
}

// overview is what the directories hold.
type overview struct {
	PostOffice  string      `json:"postoffice"`
	Directories []directory `json:"directories"`
	// Recipients are those of queued mail, by state; nil if they were not counted.
	Recipients []recipients `json:"recipients,omitempty"`
	Uncounted  bool         `json:"recipients_not_counted,omitempty"`
	// Counts are those of the scheduler; where there are any, queue/ and transport/ use them.
	Counts    *mailq.StatusInfo `json:"scheduler_counts,omitempty"`
	Owners    []owner           `json:"owners"`
	Scheduler bool              `json:"scheduler_runs"`
	// Service is who runs the daemons, if somebody does who can be asked.
	Service *serving `json:"service,omitempty"`
	// Frozen is why daemons are not to be started.
	Frozen string `json:"frozen,omitempty"`
	// Alarms are what needs a person.
	Alarms []alarm.Alarm `json:"alarms,omitempty"`

	now time.Time
}

// directory is one of the postoffice's directories.
type directory struct {
	Name    string  `json:"name"`
	Files   int     `json:"files"` // regular files, whatever their names
	States  []group `json:"states"`
	Problem string  `json:"problem,omitempty"`
}

// group is the files of one directory in one state.
type group struct {
	State         string `json:"state"`
	Files         int    `json:"files"`
	OldestSeconds int64  `json:"oldest_seconds"`
	// Next is when the first of them is routed again, if routers do that.
	Next *time.Time `json:"next,omitempty"`
}

func runStatus(c *cli.Context) error {
	if err := noArguments(c); err != nil {
		return err
	}
	po, dir, err := open(c)
	if err != nil {
		return err
	}
	defer closeFS(po)
	settings, err := config.FromCLI(c)
	if err != nil {
		return err
	}
	s := newSpool(po, time.Now()).by(settings)
	st := s.overview(c.Context, dir)
	if st.Alarms, err = s.alarms(settings); err != nil {
		return err
	}
	// Who does not let us ask still lets us count.
	st.Service, _ = serviceView(c.Context, dir, findSystemd(c.Context, "/", settings, c.App.Writer))
	st.Frozen, _ = po.Frozen()
	if c.Bool("json") {
		err = printJSON(c.App.Writer, st)
	} else {
		err = errors.Join(st.print(c.App.Writer), st.printService(c.App.Writer, s.now), printAlarms(c.App.Writer, st.Alarms, s.now))
	}
	if err == nil && (len(st.Alarms) > 0 || st.Service.ended()) {
		return cli.Exit("", 1)
	}
	return err
}

func printJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false) // addresses stand in < >
	return e.Encode(v)
}

func (s *spool) everyDirectory() []string {
	return slices.Concat(s.po.Inboxes(), s.routerDirs(), []string{postoffice.Queue, postoffice.Transport,
		postoffice.Deferred, postoffice.Freezer, postoffice.Postman, postoffice.Quarantine, postoffice.Removed, postoffice.Orders})
}

// overview counts. The directories are read one after the other: a message that moves
// meanwhile may be counted twice, or in neither.
func (s *spool) overview(ctx context.Context, dir string) *overview {
	st := &overview{now: s.now, PostOffice: dir, Scheduler: s.runs("scheduler")}
	queue, transport := nameAges{}, nameAges{}
	if st.Scheduler {
		st.Counts = schedulerCounts(ctx, dir)
	}
	for _, top := range s.everyDirectory() {
		if st.Counts != nil && isQueue(top) {
			st.Directories = append(st.Directories, counted(top, st.Counts))
			continue
		}
		d := directory{Name: top}
		err := s.eachFile(top, func(f file) {
			n, ok := postoffice.ParseName(f.Name)
			age := s.now.Sub(f.Info.ModTime)
			switch {
			case !f.Info.Mode.IsRegular():
				return
			case top == postoffice.Queue && ok:
				queue[n] = age
			case top == postoffice.Transport && ok:
				transport[n] = age
			default:
				d.add(s.stateIn(f), age)
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
			d.compare(queue, transport, stateHandedOver)
		case d.Name == postoffice.Transport:
			d.compare(transport, queue, stateFinishing)
		}
		slices.SortFunc(d.States, func(a, b group) int { return strings.Compare(a.State, b.State) })
	}
	if st.Uncounted = st.Counts != nil || len(transport) > readLimit; !st.Uncounted {
		st.Recipients = s.countRecipients(ctx)
	}
	owners, err := s.everyOwner()
	if err != nil {
		st.Owners = append(st.Owners, owner{Says: err.Error()})
	}
	slices.SortFunc(owners, func(a, b owner) int { return a.Number - b.Number })
	st.Owners = append(st.Owners, owners...)
	return st
}

// nameAges are the names in queue/ or transport/, with their ages.
type nameAges map[postoffice.Name]time.Duration

// compare counts names by whether the other directory has them, too.
func (d *directory) compare(own, other nameAges, alone string) {
	for n, age := range own {
		state := alone
		if _, both := other[n]; both {
			state = stateQueued
		}
		d.add(state, age)
	}
}

// keptDirectory tells a directory that is made when it is needed.
func keptDirectory(dir string) bool {
	return dir == postoffice.Quarantine || dir == postoffice.Removed || dir == postoffice.Orders
}

// stateIn names a file's state for the counts.
func (s *spool) stateIn(f file) string {
	switch f.Dir {
	case postoffice.Queue, postoffice.Transport:
		return "no spool file"
	case postoffice.Quarantine:
		return "quarantined"
	case postoffice.Orders:
		if isOrder(f) {
			return "order"
		}
		return "no order"
	case postoffice.Removed:
		switch {
		case !isRemoved(f):
			return "no spool file"
		case strings.HasSuffix(f.Name, ".spec"):
			return "specification"
		}
		return stateRemoved
	}
	k := s.kind(f)
	switch {
	case isReason(f):
		return "reason"
	case k.work:
		return "work file"
	case k.state == "":
		return "no spool file"
	case k.state == stateClaimed && !s.owner(k.name.Owner).Alive:
		return "claimed by the dead"
	}
	return k.state
}

func (d *directory) add(state string, age time.Duration) {
	i := slices.IndexFunc(d.States, func(g group) bool { return g.State == state })
	if i < 0 {
		d.States = append(d.States, group{State: state})
		i = len(d.States) - 1
	}
	g := &d.States[i]
	g.Files++
	g.OldestSeconds = max(g.OldestSeconds, int64(age/time.Second))
}

// routedAgain notes when a deferred message is routed again.
func (d *directory) routedAgain(s *spool, f file) {
	k := s.kind(f)
	if k.state != stateDeferred || s.resubmits.IsOff() || k.why == postoffice.WhyCrash {
		return
	}
	due := s.resubmits.Due(f.Info.ModTime, f.Info.CTime)
	if s.resubmits.IsDue(f.Info.ModTime, f.Info.CTime, s.now) {
		due = s.now
	}
	i := slices.IndexFunc(d.States, func(g group) bool { return g.State == stateDeferred })
	if g := &d.States[i]; g.Next == nil || due.Before(*g.Next) {
		g.Next = &due
	}
}

func (st *overview) print(w io.Writer) error {
	fmt.Fprintf(w, "postoffice %s\n\n", st.PostOffice)
	p, t := term.For(w), term.NewTable(w)
	fmt.Fprint(t, p.Heading("DIRECTORY\tFILES\tOLDEST\tSTATE\n"))
	for _, d := range st.Directories {
		first := d.Name + "\t" + strconv.Itoa(d.Files)
		if d.Problem != "" {
			fmt.Fprintf(t, "%s\t\t%s\n", first, p.Red(d.Problem))
			continue
		}
		if len(d.States) == 0 {
			fmt.Fprintf(t, "%s\t-\t-\n", first)
		}
		for _, g := range d.States {
			again := ""
			if g.Next != nil {
				again = ", routed again in " + human.Span(g.Next.Sub(st.now))
			}
			fmt.Fprintf(t, "%s\t%s\t%d %s%s\n", first, human.Span(time.Duration(g.OldestSeconds)*time.Second), g.Files, g.State, again)
			first = "\t"
		}
	}
	switch {
	case st.Counts != nil:
		printCounts(t, st.Counts)
	case st.Uncounted:
		fmt.Fprintln(t, "\nzmctl queue --counts counts the recipients")
	case len(st.Recipients) > 0:
		fmt.Fprint(t, "\n"+p.Heading("RECIPIENTS\tOLDEST\tSTATE\n"))
	}
	for _, r := range st.Recipients {
		fmt.Fprintf(t, "%d\t%s\t%s\n", r.Recipients, human.Span(time.Duration(r.OldestSeconds)*time.Second), p.State(r.State, r.State))
	}
	if len(st.Owners) > 0 {
		// A line without cells ends the columns of the table before it.
		fmt.Fprint(t, "\n"+p.Heading("OWNER\tLIVES\tPROCESS\n"))
	}
	for _, o := range st.Owners {
		lives := "yes"
		if !o.Alive {
			lives = p.State("no", "no")
		}
		fmt.Fprintf(t, "%d\t%s\t%s\n", o.Number, lives, o.Says)
	}
	err := t.Flush()
	if !st.Scheduler {
		_, perr := fmt.Fprintln(w, "\n"+p.Red("no scheduler runs: nothing is delivered; zmctl start starts the daemons"))
		err = errors.Join(err, perr)
	}
	return err
}
