package main

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"zmailer/internal/admin/view"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/config"
	"zmailer/internal/run/human"
	"zmailer/internal/ui/term"
	"zmailer/internal/ui/text"
)

func checkCommand() *cli.Command {
	return &cli.Command{
		Name:      "check",
		Usage:     "explain every file of the postoffice and what is wrong with it, and mend it",
		UsageText: "zmctl check [--problems | --quiet] [--json] [--older TIME] [--stuck TIME]\nzmctl check --repair | --dry-run [--json | --quiet]\nzmctl check --ledger [--json] [--quiet]\nzmctl check --confinement [--json]",
		Description: `Goes through every directory and says of each file which state it is in, who holds it
and whether that process lives, what happens next, and what is wrong. It changes nothing,
and may run while mail flows: what looks wrong is looked at again before it is said. It also
names the file system and what a loss of power may do there, which is no problem of the mail.
On one of an unknown kind it renames an empty file and removes it, to see that this works.

    zmctl check --problems

--repair mends what can be mended without guessing, and puts what nobody can use into
quarantine/. After a copy or restore of the postoffice it gives files the numbers of
their new inodes. What is in queue/ and transport/ is left alone while a scheduler
runs. --dry-run prints what --repair would do, and changes nothing.

--ledger counts recipients: those that were accepted, and what became of them. What is on
one side only is named. Exit codes then: 0 both sides are equal, 2 they are not, 1 the
ledger cannot be read. docs/ledger.md explains the table.

--confinement starts a process for each program that confines itself, has it give up what
the program gives up, and try what it must not be able to do. Exit codes then: 0 all was
refused, 2 something was not, 1 nothing is confined.

Exit codes: 0 all is as it should be; 1 warnings: a person may want to look, or a daemon
that does not run must be started; 2 errors: a file that nothing will take care of by
itself, or that cannot be looked at; 64 bad arguments; 78 no postoffice. With --repair:
0 all is done, 1 something is left, and told. With --dry-run: 1 there is something to do.
docs/check.md explains each problem, and what to type.`,
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "problems", Usage: "print warnings and errors only"},
			&cli.BoolFlag{Name: "json", Usage: "print a JSON array"},
			&cli.BoolFlag{Name: "quiet", Aliases: []string{"q"}, Usage: "print the sum alone, and show no progress"},
			&cli.StringFlag{Name: "older", Usage: "mail is too old after `TIME`, like 12h or 2d, whatever the expiry of its clause in scheduler.conf"},
			&cli.StringFlag{Name: "stuck", Value: "1h", Usage: "mail that a live daemon has left alone for `TIME` makes no progress"},
			&cli.BoolFlag{Name: "repair", Usage: "mend what can be mended without guessing, quarantine the rest"},
			&cli.BoolFlag{Name: "dry-run", Usage: "print what --repair would do"},
			&cli.BoolFlag{Name: "confinement", Usage: "have each program try to leave its room, as docs/privileges.md has them"},
			&cli.BoolFlag{Name: "ledger", Usage: "compare what was accepted with what became of it"},
		},
		Action: runCheck,
	}
}

func runCheck(c *cli.Context) error {
	if err := noArguments(c); err != nil {
		return err
	}
	watch, err := checkFlags(c)
	if err != nil {
		return cli.Exit(err, config.ExitUsage)
	}
	if c.Bool("confinement") {
		return checkConfinement(c)
	}
	po, _, err := open(c)
	if err != nil {
		return err
	}
	defer closeFS(po)
	if c.Bool("ledger") {
		return checkLedger(c, po)
	}
	if c.Bool("repair") || c.Bool("dry-run") {
		return runRepair(c, po)
	}
	settings, err := config.FromCLI(c)
	if err != nil {
		return err
	}
	watch.settings = settings
	watch.expiry = func(pairs []view.Thread) map[view.Thread]time.Duration { return view.Expiry(settings, pairs) }
	watch.bar = newCounter(c, "check", "files")
	found := checkAll(po, watch)
	watch.bar.End()
	worst, shown := fine, []finding{}
	counts := [3]int{}
	for _, f := range found {
		worst = max(worst, f.Severity)
		counts[f.Severity]++
		if f.Severity > fine || !c.Bool("problems") {
			shown = append(shown, f)
		}
	}
	if c.Bool("json") {
		err = text.PrintJSON(c.App.Writer, shown)
	} else {
		if c.Bool("quiet") {
			shown = nil
		}
		err = printFindings(c.App.Writer, shown, counts)
	}
	if err != nil || worst == fine {
		return err
	}
	return cli.Exit("", int(worst))
}

// checkFlags reads the times, and refuses flags that do not go together: a repair that
// is asked for must not be passed over.
func checkFlags(c *cli.Context) (w watchSettings, err error) {
	repairs := c.Bool("repair") || c.Bool("dry-run")
	if repairs && c.Bool("ledger") {
		return w, errors.New("check: --ledger and --repair do not go together")
	}
	if looks := c.IsSet("problems") || c.IsSet("older") || c.IsSet("stuck"); looks && (repairs || c.Bool("ledger")) {
		return w, errors.New("check: --problems, --older and --stuck do not go together with --repair, --dry-run or --ledger")
	}
	for name, to := range map[string]*time.Duration{"older": &w.older, "stuck": &w.stuck} {
		if c.String(name) == "" {
			continue
		}
		if *to, err = config.ParseDuration(c.String(name)); err != nil {
			return w, fmt.Errorf("check: --%s %s: %w", name, c.String(name), err)
		}
	}
	return w, nil
}

func printFindings(w io.Writer, list []finding, counts [3]int) error {
	var errs []error
	p := term.For(w)
	for _, f := range list {
		words := ""
		for _, problem := range f.Problems {
			words += " [" + string(problem) + "]"
		}
		severity := fmt.Sprintf("%-7s", f.Severity)
		switch f.Severity {
		case fine:
			severity = p.Green(severity)
		case warning:
			severity, words = p.Yellow(severity), p.Yellow(words)
		case wrong:
			severity, words = p.Red(severity), p.Red(words)
		}
		_, err := fmt.Fprintf(w, "%s  %s: %s%s\n         %s\n", severity, p.Bold(human.Clean(f.File)), f.State, words, human.Clean(f.Text))
		errs = append(errs, err)
	}
	_, err := fmt.Fprintf(w, "%d ok, %s, %s\n", counts[fine], human.Count(counts[warning], "warning"), human.Count(counts[wrong], "error"))
	return errors.Join(append(errs, err)...)
}

// watchSettings say from when on something is worth a look.
type watchSettings struct {
	older  time.Duration // 0: the expiry of the clause
	stuck  time.Duration
	expiry func([]view.Thread) map[view.Thread]time.Duration
	bar    *text.Progress
	// settings are zmailer.conf; nil: none are known.
	settings *config.Config
}

// looks is how often something that seems wrong is looked at before it is said.
const looks = 3

// checkAll looks at everything, and again at what seems wrong: a file that moves, and
// a number that is used again, can look like almost anything once. A problem counts if
// every look finds it.
func checkAll(po *postoffice.PostOffice, settings watchSettings) []finding {
	found := look(po, settings, nil)
	for range looks - 1 {
		again := map[string]bool{}
		for _, f := range found {
			if f.Severity > fine {
				again[f.key] = true
			}
		}
		if len(again) == 0 {
			break
		}
		found = confirm(found, look(po, settings, again))
	}
	return found
}

// confirm keeps of the findings with problems those that another look has found too.
func confirm(first, second []finding) []finding {
	type place struct{ file, part string }
	again := map[place]*finding{}
	for i := range second {
		again[place{second[i].File, second[i].part}] = &second[i]
	}
	kept := first[:0]
	for _, f := range first {
		if f.Severity > fine {
			now := again[place{f.File, f.part}]
			if now == nil || now.id != f.id {
				continue // it has moved on
			}
			now.Problems = slices.DeleteFunc(now.Problems, func(p problem) bool { return !slices.Contains(f.Problems, p) })
			if now.Severity = fine; len(now.Problems) > 0 {
				for _, p := range now.Problems {
					now.Severity = max(now.Severity, severityOf(p))
				}
			}
			f = *now
		}
		kept = append(kept, f)
	}
	return kept
}

// checker is one look at the postoffice.
type checker struct {
	*view.Spool
	watchSettings
	only     map[string]bool // keys of what is to be looked at; nil: everything
	findings []finding
	reports  map[string]string // file in public/ → specification that records it
	replaced map[string]string // name in transport/ → specification that was made of it
	mail     []mail
	queues   []*view.Message // with open recipients
}

func look(po *postoffice.PostOffice, settings watchSettings, only map[string]bool) []finding {
	x := &checker{Spool: view.New(po, time.Now()).With(settings.settings), watchSettings: settings, only: only,
		reports: map[string]string{}, replaced: map[string]string{}}
	x.Spool.Seen = settings.bar.Step
	x.run()
	return x.findings
}

// wants tells whether a file is to be looked at in this look.
func (x *checker) wants(key string) bool { return x.only == nil || x.only[key] }

// tell ends a report.
func (x *checker) tell(r *report) {
	if x.wants(r.key) {
		r.Text = strings.Join(r.text, " ")
		x.findings = append(x.findings, r.finding)
	}
}

func (x *checker) run() {
	x.daemons()
	x.fileSystem()
	x.top()
	x.directories()
	// The specifications first: they tell which files in public/ are reports.
	x.queue()
	for _, dir := range x.PO.Submissions.Inboxes() {
		x.each(dir, x.public)
	}
	for _, dir := range x.RouterDirs() {
		x.each(dir, x.router)
	}
	for _, dir := range []string{postoffice.Deferred, postoffice.Freezer, postoffice.Postman} {
		x.each(dir, x.aside)
	}
	x.kept()
	x.owned()
	x.twice()
	x.aged()
}

// each looks at every name in a directory.
func (x *checker) each(dir string, look func(f view.File)) {
	files, err := x.List(dir)
	if err != nil {
		x.tell(about(dir, "unreadable").wrong(unreadable, "%v", err))
	}
	for _, f := range files {
		look(f)
	}
}

// daemons warns when nobody is there to move mail on.
func (x *checker) daemons() {
	for _, role := range []string{"router", "scheduler"} {
		if x.Runs(role) {
			x.tell(about(role, "running").say("It lives."))
		} else {
			x.tell(about(role, "not running").wrong(daemonMissing, "Nothing moves on without it; zmctl start starts the daemons."))
		}
	}
}
