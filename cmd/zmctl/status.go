package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/urfave/cli/v2"

	"zmailer/internal/admin/service"
	"zmailer/internal/admin/view"
	"zmailer/internal/postoffice/alarm"
	"zmailer/internal/run/config"
	"zmailer/internal/run/human"
	"zmailer/internal/ui/term"
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

// statusReport is what zmctl status prints.
type statusReport struct {
	*view.Overview
	// Service is who runs the daemons, if somebody does who can be asked.
	Service *service.Status `json:"service,omitempty"`
	// Frozen is why daemons are not to be started.
	Frozen string `json:"frozen,omitempty"`
	// Alarms are what needs an operator.
	Alarms []alarm.Alarm `json:"alarms,omitempty"`
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
	s := view.New(po, time.Now()).With(settings)
	st := &statusReport{Overview: s.Overview(c.Context, dir)}
	if st.Alarms, err = s.Alarms(settings); err != nil {
		return err
	}
	// Who does not let us ask still lets us count.
	st.Service, _ = service.New(c.Context, settings, po, false).Status(c.Context)
	st.Frozen, _ = po.Frozen()
	if c.Bool("json") {
		err = printJSON(c.App.Writer, st)
	} else {
		err = errors.Join(printOverview(c.App.Writer, st.Overview, s.Now), st.printServing(c.App.Writer, s.Now), printAlarms(c.App.Writer, st.Alarms, s.Now))
	}
	if err == nil && (len(st.Alarms) > 0 || st.Service.Ended()) {
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

func printOverview(w io.Writer, st *view.Overview, now time.Time) error {
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
				again = ", routed again in " + human.Span(g.Next.Sub(now))
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

// printServing shows what runs the daemons.
func (st *statusReport) printServing(w io.Writer, now time.Time) error {
	var err error
	if st.Service != nil {
		_, werr := fmt.Fprintln(w)
		err = errors.Join(werr, printService(w, st.Service, now))
	}
	if st.Frozen != "" {
		_, werr := fmt.Fprintf(w, "\nthe service is frozen: %s; zmctl thaw-service\n", human.Clean(st.Frozen))
		err = errors.Join(err, werr)
	}
	return err
}
