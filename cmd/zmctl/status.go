package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/urfave/cli/v2"

	"zmailer/internal/postoffice"
)

func statusCommand() *cli.Command {
	return &cli.Command{
		Name:      "status",
		Usage:     "count the files of each directory, and tell which daemons live",
		UsageText: "zmctl status [--json]",
		Description: `Counts what is in each directory now, with the age of the oldest message of each
state, and lists the processes that hold an owner number. The counts are those of the
disk: ls | wc -l gives the same. States are explained in docs/spool.md.`,
		Flags:  []cli.Flag{&cli.BoolFlag{Name: "json", Usage: "print one JSON object"}},
		Action: runStatus,
	}
}

// overview is what the directories hold.
type overview struct {
	PostOffice  string      `json:"postoffice"`
	Directories []directory `json:"directories"`
	Owners      []owner     `json:"owners"`
	Scheduler   bool        `json:"scheduler_runs"`
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
	st := newSpool(po, time.Now()).overview(dir)
	if c.Bool("json") {
		return printJSON(c.App.Writer, st)
	}
	return st.print(c.App.Writer)
}

func printJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false) // addresses stand in < >
	return e.Encode(v)
}

func everyDirectory() []string {
	return []string{postoffice.Public, postoffice.Router, postoffice.Queue, postoffice.Transport,
		postoffice.Deferred, postoffice.Freezer, postoffice.Postman}
}

// overview counts. The directories are read one after the other: a message that moves
// meanwhile may be counted twice, or in neither.
func (s *spool) overview(dir string) *overview {
	st := &overview{PostOffice: dir, Scheduler: s.runs("scheduler")}
	listed := map[string][]file{}
	names := map[string]map[postoffice.Name]bool{}
	for _, top := range everyDirectory() {
		files, err := s.list(top)
		listed[top] = files
		names[top] = map[postoffice.Name]bool{}
		for _, f := range files {
			if n, ok := postoffice.ParseName(f.Name); ok && f.Info.Mode.IsRegular() {
				names[top][n] = true
			}
		}
		d := directory{Name: top}
		if err != nil {
			d.Problem = err.Error()
		}
		st.Directories = append(st.Directories, d)
	}
	for i := range st.Directories {
		d := &st.Directories[i]
		for _, f := range listed[d.Name] {
			if f.Info.Mode.IsRegular() {
				d.Files++
				d.add(s.stateIn(f, names), s.now.Sub(f.Info.ModTime))
			}
		}
		slices.SortFunc(d.States, func(a, b group) int { return strings.Compare(a.State, b.State) })
	}
	owners, err := s.everyOwner()
	if err != nil {
		st.Owners = append(st.Owners, owner{Says: err.Error()})
	}
	slices.SortFunc(owners, func(a, b owner) int { return a.Number - b.Number })
	st.Owners = append(st.Owners, owners...)
	return st
}

// stateIn names a file's state for the counts.
func (s *spool) stateIn(f file, names map[string]map[postoffice.Name]bool) string {
	n, ok := postoffice.ParseName(f.Name)
	switch {
	case f.Dir == postoffice.Queue || f.Dir == postoffice.Transport:
		message, spec := names[postoffice.Queue][n], names[postoffice.Transport][n]
		switch {
		case !ok:
			return "no spool file"
		case message && spec:
			return stateQueued
		case message:
			return stateHandedOver
		}
		return stateFinishing
	}
	k := s.kind(f)
	switch {
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

func (st *overview) print(w io.Writer) error {
	fmt.Fprintf(w, "postoffice %s\n\n", st.PostOffice)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "DIRECTORY\tFILES\tOLDEST\tSTATE")
	for _, d := range st.Directories {
		first := d.Name + "\t" + strconv.Itoa(d.Files)
		if d.Problem != "" {
			fmt.Fprintf(t, "%s\t\t%s\n", first, d.Problem)
			continue
		}
		if len(d.States) == 0 {
			fmt.Fprintf(t, "%s\t-\t-\n", first)
		}
		for _, g := range d.States {
			fmt.Fprintf(t, "%s\t%s\t%d %s\n", first, span(time.Duration(g.OldestSeconds)*time.Second), g.Files, g.State)
			first = "\t"
		}
	}
	if len(st.Owners) > 0 {
		// A line without cells ends the columns of the table before it.
		fmt.Fprintln(t, "\nOWNER\tLIVES\tPROCESS")
	}
	for _, o := range st.Owners {
		lives := "yes"
		if !o.Alive {
			lives = "no"
		}
		fmt.Fprintf(t, "%d\t%s\t%s\n", o.Number, lives, o.Says)
	}
	err := t.Flush()
	if !st.Scheduler {
		_, perr := fmt.Fprintln(w, "\nno scheduler runs: nothing is delivered; zmctl run starts the daemons")
		err = errors.Join(err, perr)
	}
	return err
}
