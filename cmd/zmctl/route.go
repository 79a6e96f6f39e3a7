package main

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/urfave/cli/v2"

	"zmailer/internal/admin/view"
	"zmailer/internal/admin/whatif"
	"zmailer/internal/disk/lastgood"
	"zmailer/internal/run/config"
	"zmailer/internal/stage/router/route"
	"zmailer/internal/ui/routes"
	"zmailer/internal/ui/text"
)

func routeCommand() *cli.Command {
	return &cli.Command{
		Name:      "route",
		Usage:     "show where addresses, a message, or all queued mail would be routed",
		UsageText: "zmctl route [--from ADDRESS] [--message FILE] [--all | --json] [ADDRESS...]\n   zmctl route --queue [--config DIR] [--json] [ID...] [flags]",
		Description: `Prints each step that the router takes for an address: the table, file and line, the key
that matched and the result; then channel, host, user and privilege, and the clause of
scheduler.conf that serves it. It uses the router's own code and changes nothing.

    zmctl route sales@example.com
    zmctl route --message /var/spool/postoffice/queue/10117782-4711
    zmctl route --from boss@far.example --message draft.eml bob@example.com

Without --from an address is routed as if you had submitted the mail, and a message as if
the owner of its file had; with it, as mail from outside.

With --queue it compares where each open recipient of all queued mail goes now with where the
configuration in DIR (zmailer.conf and the tables beside it) would route it. The differences
are printed in groups, the worst first. Daemons may run meanwhile. Queued mail keeps its
routes when the configuration changes: zmctl reroute gives it to the router again.

    zmctl route --queue --config /etc/zmailer.new
    zmctl route --queue --config /etc/zmailer.new --host mx.example.com --older 1h

Without --config it compares with the present configuration, and shows mail that would be
routed elsewhere if it arrived now.
` + selectorHelp + `

Exit codes: 0 all recipients are deliverable, 1 some are rejected, frozen, or not served,
75 a lookup is not possible now. With --queue: 0 no differences, 1 the configuration in DIR
makes differences, 2 something could not be read or compared. 64 bad arguments,
78 a configuration that cannot be used.`,
		Flags:  routeFlags(),
		Action: runRoute,
	}
}

// routeFlags returns those of the selector and our own. --from is both.
func routeFlags() []cli.Flag {
	flags := selectorFlags()
	for _, f := range flags {
		if g, ok := f.(*cli.GenericFlag); ok && g.Name == "from" {
			g.Usage = "the message has the sender `ADDRESS` and came from outside; with --queue: GLOB"
		}
	}
	return append(flags,
		&cli.StringFlag{Name: "message", Usage: "route the message in `FILE`, with envelope lines or without; - is standard input"},
		&cli.BoolFlag{Name: "queue", Usage: "compare where queued mail goes with where it would be routed"},
		&cli.StringFlag{Name: "config", Usage: "with --queue: compare with the configuration in `DIR`, or with a zmailer.conf"},
		&cli.BoolFlag{Name: "json", Usage: "print JSON (docs/route.md)"},
		&cli.BoolFlag{Name: "stdin", Usage: "with --json: read paths of message files below the postoffice, and print a line for each"},
		&cli.BoolFlag{Name: "all", Usage: "print everything of large lists; with --queue: every group"},
	)
}

func runRoute(c *cli.Context) error {
	if c.Bool("queue") {
		return runRouteQueue(c)
	}
	refuse := func(text string) error { return cli.Exit("zmctl route: "+text, config.ExitUsage) }
	for _, f := range selectorFlags() {
		if name := f.Names()[0]; name != "from" && c.IsSet(name) {
			return refuse("--" + name + " requires --queue")
		}
	}
	if c.IsSet("config") {
		return refuse("--config behind the command requires --queue; before the command, it names the configuration")
	}
	from, _ := c.Generic("from").(*words)
	stdin := c.Bool("stdin")
	switch {
	case stdin && (c.NArg() > 0 || len(from.list) > 0 || c.String("message") != "" || !c.Bool("json")):
		return refuse("--stdin requires --json and excludes addresses, --from and --message")
	case !stdin && c.NArg() == 0 && c.String("message") == "":
		return refuse("name addresses, a message with --message, or use --queue")
	}
	settings, err := lastgood.Accepted(outer(c))
	if err != nil {
		return err
	}
	engine, err := whatif.Open(settings)
	if err != nil {
		return err
	}
	defer engine.Close() // it wrote nothing
	if stdin {
		return routeFiles(c, engine, settings.PostOffice())
	}
	if err := engine.ServicesErr; err != nil {
		fmt.Fprintf(c.App.ErrWriter, "zmctl: which clause serves a target is unknown: %v\n", err)
	}
	questions, err := routeQuestions(c, from.list)
	if err != nil {
		return err
	}
	worst, lines := 0, text.JSONLines(c.App.Writer)
	var last []route.Step
	for _, q := range questions {
		e := engine.Explain(c.Context, q)
		if c.Bool("json") {
			err = lines.Encode(e)
		} else {
			if slices.Equal(e.Steps, last) {
				e.Steps = nil // printed above
			} else {
				last = e.Steps
			}
			err = routes.PrintExplanation(c.App.Writer, e)
		}
		if err != nil {
			return fmt.Errorf("print the route: %w", err)
		}
		worst = max(worst, routeExit(e))
	}
	if worst > 0 {
		return cli.Exit("", worst)
	}
	return nil
}

// routeShown is how many steps and targets of a recipient are printed without --all.
const routeShown = 50

// Exit codes of zmctl route.
const (
	exitNotAll  = 1 // some recipient is not delivered to
	exitDiffers = 1 // --queue: the configuration makes differences
	exitPartial = 2 // --queue: something could not be compared
	exitLater   = 75
)

func routeExit(e *route.Explanation) int {
	switch {
	case e.Verdict == route.VerdictDeferred:
		return exitLater
	case e.Verdict == route.VerdictRouted && e.Whole():
		return 0
	}
	return exitNotAll
}

// routeQuestions are one for each address of the command line, or one for the message.
func routeQuestions(c *cli.Context, from []string) (list []route.Question, err error) {
	q := route.Question{Steps: true, Most: routeShown}
	if c.Bool("all") {
		q.Most = 0
	}
	if n := len(from); n > 0 {
		q.From = &from[n-1]
	}
	switch name := c.String("message"); name {
	case "":
	case "-":
		q.Message, err = route.ReadMessage(os.Stdin)
	default:
		q.Message, err = route.OpenMessage(name)
	}
	if err != nil {
		return nil, fmt.Errorf("--message: %w", err)
	}
	if c.NArg() == 0 {
		return []route.Question{q}, nil
	}
	for _, to := range c.Args().Slice() {
		q.To = []string{to}
		list = append(list, q)
	}
	return list, nil
}

// routeFiles answers each line of standard input, a path below the postoffice.
func routeFiles(c *cli.Context, engine *whatif.Engine, dir string) error {
	in, lines := bufio.NewScanner(os.Stdin), text.JSONLines(c.App.Writer)
	for in.Scan() {
		e, err := engine.ExplainFile(c.Context, dir, in.Text())
		if err == nil {
			err = lines.Encode(e)
		}
		if err != nil {
			return err
		}
	}
	if err := in.Err(); err != nil {
		return fmt.Errorf("read paths: %w", err)
	}
	return nil
}

func runRouteQueue(c *cli.Context) (err error) {
	if c.IsSet("message") || c.Bool("stdin") {
		return cli.Exit("zmctl route --queue: name spool IDs; --message and --stdin do not select queued mail", config.ExitUsage)
	}
	o := whatif.Options{}
	if o.Selector, err = chosen(c); err != nil {
		return err
	}
	present, err := lastgood.Accepted(outer(c))
	if err != nil {
		return err
	}
	candidate, name := present, c.String("config")
	if name != "" {
		if info, err := os.Stat(name); err == nil && info.IsDir() {
			name = filepath.Join(name, "zmailer.conf")
		}
		if candidate, err = config.LoadFor(name, present.PostOffice()); err != nil {
			return err
		}
	}
	po, dir, err := open(outer(c))
	if err != nil {
		return err
	}
	defer closeFS(po)
	o.Spool, o.PostOffice = view.New(po, time.Now()), dir
	if o.Candidate, err = whatif.Open(candidate); err != nil {
		return err
	}
	defer o.Candidate.Close() // it wrote nothing
	if err := o.Candidate.ServicesErr; err != nil {
		return err
	}
	if name != "" {
		// A present configuration that is broken is a reason to try another.
		if o.Present, err = whatif.Open(present); err != nil {
			o.Present = nil
			fmt.Fprintf(c.App.ErrWriter, "%v\nzmctl: the present configuration cannot be used; all differences are reported as the candidate's\n", err)
		} else {
			defer o.Present.Close()
		}
	}
	var bar *text.Progress
	o.Total = func(n int) { bar = newProgress(c, "compared", n) }
	o.Step = func() { bar.Step() }
	sum, err := whatif.Compare(c.Context, o)
	bar.End()
	if err != nil && !errors.Is(err, view.ErrListing) {
		return err
	}
	listing := err
	if c.Bool("json") {
		err = text.PrintJSON(c.App.Writer, sum)
	} else {
		err = routes.PrintComparison(c.App.Writer, sum, c.Bool("all"))
	}
	switch {
	case err != nil:
		return err
	case listing != nil:
		return cli.Exit(listing, exitPartial)
	case sum.Unread > 0:
		return cli.Exit("", exitPartial)
	case sum.Differ > 0:
		return cli.Exit("", exitDiffers)
	}
	return nil
}

// outer returns the context of zmctl's own flags, of which --config is one.
func outer(c *cli.Context) *cli.Context {
	lineage := c.Lineage()
	return lineage[min(1, len(lineage)-1)]
}
