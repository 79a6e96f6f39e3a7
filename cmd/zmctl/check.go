package main

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/urfave/cli/v2"

	"zmailer/internal/admin/check"
	"zmailer/internal/admin/repair"
	"zmailer/internal/disk/durable"
	"zmailer/internal/disk/filesystem"
	"zmailer/internal/disk/lastgood"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/config"
	"zmailer/internal/run/confine"
	"zmailer/internal/run/human"
	"zmailer/internal/ui/text"
)

func checkCommand() *cli.Command {
	return &cli.Command{
		Name:      "check",
		Usage:     "inspect every file of the postoffice, and repair errors",
		UsageText: "zmctl check [--problems | --quiet] [--json] [--older TIME] [--stuck TIME]\nzmctl check --repair | --dry-run [--json | --quiet]\nzmctl check --ledger [--json] [--quiet]\nzmctl check --confinement [--json]\nzmctl check --filesystem DIR [--json]",
		Description: `Inspects every directory and prints for each file its state, the process that holds it and
whether that runs, the next step, and any problem. It changes nothing, and may run while mail
is processed: an apparent problem is inspected again before it is printed. It also prints the
type of the file system and the effects of a power failure on it. On an unknown file system it
renames and removes an empty file, as a test.

    zmctl check --problems

--repair makes all repairs that need no guess, and moves files that no program can use into
quarantine/. After a copy or restore of the postoffice it renames files to match their new
inodes. It does not change queue/ and transport/ while a scheduler runs. --dry-run prints the
repairs, and changes nothing.

--ledger counts recipients: those that were accepted, and their outcomes. Recipients on only
one side are listed. Exit codes then: 0 both sides are equal, 2 they are not, 1 the ledger
cannot be read. docs/ledger.md explains the table.

--confinement starts a process for each program that confines itself, which enters the sandbox
of the program and tries forbidden operations. Exit codes then: 0 all were refused, 2 some were
not, 1 no program is confined.

--filesystem makes files in a directory of its own in DIR, and removes them: it tries what a
postoffice needs of the file system, and measures fsync. No postoffice need be there. Exit codes
then: 0 nothing that is needed is missing, 2 something is, 1 it cannot be tried.

Exit codes: 0 no problems; 1 warnings: an operator should investigate, or a daemon must be
started; 2 errors: a file that no program will process, or that cannot be read; 64 bad
arguments; 78 no postoffice. With --repair: 0 done, 1 problems remain, and are printed. With
--dry-run: 1 there are repairs to make. docs/check.md explains each problem and its remedy.`,
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "problems", Usage: "print warnings and errors only"},
			&cli.BoolFlag{Name: "json", Usage: "print a JSON array"},
			&cli.BoolFlag{Name: "quiet", Aliases: []string{"q"}, Usage: "print the totals only, and show no progress"},
			&cli.StringFlag{Name: "older", Usage: "mail is too old after `TIME`, like 12h or 2d, instead of the expiry of its clause in scheduler.conf"},
			&cli.StringFlag{Name: "stuck", Value: "1h", Usage: "mail that a running daemon has not processed for `TIME` makes no progress"},
			&cli.BoolFlag{Name: "repair", Usage: "make repairs that need no guess, and quarantine the rest"},
			&cli.BoolFlag{Name: "dry-run", Usage: "print the repairs that --repair would make"},
			&cli.BoolFlag{Name: "confinement", Usage: "test the sandbox of each program (docs/privileges.md)"},
			&cli.StringFlag{Name: "filesystem", Usage: "test what a postoffice in `DIR` needs of the file system (docs/durability.md)"},
			&cli.BoolFlag{Name: "ledger", Usage: "compare accepted recipients with their outcomes"},
		},
		Action: runCheck,
	}
}

func runCheck(c *cli.Context) error {
	if err := noArguments(c); err != nil {
		return err
	}
	o, err := checkFlags(c)
	if err != nil {
		return cli.Exit(err, config.ExitUsage)
	}
	if c.Bool("confinement") {
		return checkConfinement(c)
	}
	if c.IsSet("filesystem") {
		return checkFileSystem(c, c.String("filesystem"))
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
	settings, err := lastgood.Accepted(c)
	if err != nil {
		return err
	}
	o.Settings = settings
	bar := newCounter(c, "check", "files")
	o.Seen = bar.Step
	found := check.All(po, o)
	bar.End()
	worst, shown := check.Fine, []check.Finding{}
	counts := [3]int{}
	for _, f := range found {
		worst = max(worst, f.Severity)
		counts[f.Severity]++
		if f.Severity > check.Fine || !c.Bool("problems") {
			shown = append(shown, f)
		}
	}
	if c.Bool("json") {
		err = text.PrintJSON(c.App.Writer, shown)
	} else {
		if c.Bool("quiet") {
			shown = nil
		}
		err = text.PrintFindings(c.App.Writer, shown, counts)
	}
	if err != nil || worst == check.Fine {
		return err
	}
	return cli.Exit("", int(worst))
}

// checkFlags reads the times, and refuses flags that exclude each other: a repair that was
// asked for must not be ignored.
func checkFlags(c *cli.Context) (o check.Options, err error) {
	repairs := c.Bool("repair") || c.Bool("dry-run")
	if repairs && c.Bool("ledger") {
		return o, errors.New("check: --ledger and --repair exclude each other")
	}
	if looks := c.IsSet("problems") || c.IsSet("older") || c.IsSet("stuck"); looks && (repairs || c.Bool("ledger")) {
		return o, errors.New("check: --problems, --older and --stuck cannot be used with --repair, --dry-run or --ledger")
	}
	for name, to := range map[string]*time.Duration{"older": &o.Older, "stuck": &o.Stuck} {
		if c.String(name) == "" {
			continue
		}
		if *to, err = config.ParseDuration(c.String(name)); err != nil {
			return o, fmt.Errorf("check: --%s %s: %w", name, c.String(name), err)
		}
	}
	return o, nil
}

func runRepair(c *cli.Context, po *postoffice.PostOffice) error {
	dry := c.Bool("dry-run")
	bar := newCounter(c, "repair", "files")
	do := repair.Do
	if dry {
		do = repair.Plan
	}
	steps, err := do(po, time.Now(), bar.Step)
	bar.End()
	if errors.Is(err, repair.ErrNotBegun) {
		return err
	}
	left := 0
	for i := range steps {
		if steps[i].Left != "" {
			left++
		}
	}
	if c.Bool("json") {
		if steps == nil {
			steps = []repair.Step{}
		}
		err = errors.Join(err, text.PrintJSON(c.App.Writer, steps))
	} else {
		shown := steps
		if c.Bool("quiet") {
			shown = slices.DeleteFunc(slices.Clone(steps), func(s repair.Step) bool { return s.Left == "" })
		}
		err = errors.Join(err, text.PrintSteps(c.App.Writer, shown))
		done := "done"
		if dry {
			done = "to be done; nothing was changed"
		}
		_, perr := fmt.Fprintf(c.App.Writer, "%s %s, %d left\n", human.Count(len(steps)-left, "repair"), done, left)
		err = errors.Join(err, perr)
	}
	if err == nil && (left > 0 || dry && len(steps) > 0) {
		return cli.Exit("", 1)
	}
	return err
}

// checkFileSystem prints what was tried in a directory.
func checkFileSystem(c *cli.Context, dir string) error {
	m, err := durable.MountOf(dir)
	if err != nil {
		return cli.Exit(fmt.Errorf("check the file system of %s: %w", dir, err), 1)
	}
	list, err := filesystem.Measure(dir, ".")
	if err != nil {
		return cli.Exit(fmt.Errorf("check the file system of %s: %w", dir, err), 1)
	}
	missing := 0
	for _, p := range list {
		if p.IsMissing() {
			missing++
		}
	}
	if c.Bool("json") {
		err = text.PrintJSON(c.App.Writer, list)
	} else {
		err = text.PrintProperties(c.App.Writer, list)
		for _, r := range m.Risks(false) {
			fmt.Fprintf(c.App.Writer, "risk: %s. Remedy: %s.\n", r.Text, r.Remedy)
		}
		_, perr := fmt.Fprintf(c.App.Writer, "%s is on %s: %d missing\n", dir, m, missing)
		err = errors.Join(err, perr)
	}
	if missing > 0 {
		return errors.Join(err, cli.Exit("", int(check.Wrong)))
	}
	return err
}

// checkConfinement prints what processes in the sandboxes of the programs tried.
func checkConfinement(c *cli.Context) error {
	settings, err := lastgood.Accepted(c)
	if err != nil {
		return err
	}
	if !check.Confined(settings) {
		return cli.Exit("nothing is confined: zmailer.conf has neither DAEMONUSER, for root, nor CONFINE=yes (docs/privileges.md)", 1)
	}
	all, err := check.Confinement(c.Context, settings, c.App.ErrWriter)
	if err != nil {
		return err
	}
	allowed := 0
	for _, a := range all {
		word := "refused"
		if !a.Refused {
			word, a.Reason = "ALLOWED", "it was done"
			allowed++
		}
		if !c.Bool("json") {
			fmt.Fprintf(c.App.Writer, "%-10s  %s  %s: %s\n", a.Program, word, a.Try, a.Reason)
		}
	}
	if c.Bool("json") {
		err = text.PrintJSON(c.App.Writer, all)
	} else {
		_, err = fmt.Fprintf(c.App.Writer, "%s, %d allowed\n", human.Count(len(all), "attempt"), allowed)
	}
	if allowed > 0 {
		return errors.Join(err, cli.Exit("", int(check.Wrong)))
	}
	return err
}

// tryCommand returns what check --confinement runs; it is not for operators.
func tryCommand() *cli.Command {
	return &cli.Command{
		Name: check.TryCommand, Hidden: true, Usage: "enter the sandbox of a program and try to leave it",
		Action: func(c *cli.Context) error {
			settings, err := config.FromCLI(c)
			if err != nil {
				return err
			}
			list, err := check.TryEscape(settings, c.Args().First())
			if err != nil {
				return err
			}
			return text.PrintJSON(c.App.Writer, list)
		},
	}
}

func depthOf(c *cli.Context) check.Depth {
	for _, d := range []check.Depth{check.Start, check.Restart} {
		if c.Bool(string(d)) {
			return d
		}
	}
	return check.Everything
}

func checkConfigCommand() *cli.Command {
	return &cli.Command{
		Name:      "check-config",
		Usage:     "check the configuration",
		UsageText: "zmctl check-config [--start] [--json]",
		Description: `Reads all that a start reads, by the same functions and as the same user: zmailer.conf,
scheduler.conf, the router's tables and router.star, smtpserver's certificates with their keys,
access rules and passwords, and the files of ta-smtp (replies, discard-ehlo-keywords, tls,
credentials, dkim and its keys). It prints every error with file, line, cause and, where there
is one, the remedy; and warnings: settings and keys that are there twice, certificates that end
within 14 days, clauses that are never reached or match no host, programs that do not exist,
routes to channels that no clause serves.

The command changes nothing and asks no daemon; with --start it saves copies of the files of ta-smtp
that are right, as an agent would. zmctl start, restart, reload and run do the same
first, and leave what runs alone if there are errors. Exit codes: 0 the configuration can be
used, 78 it cannot.`,
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "json", Usage: "print one JSON object with a line for each message"},
			&cli.BoolFlag{Name: "start", Usage: "accept what a start accepts: also a file with an error, if there is a copy of its last good content"},
			&cli.BoolFlag{Name: string(check.Restart), Hidden: true},
			&cli.BoolFlag{Name: check.HereFlag, Hidden: true},
		},
		Action: func(c *cli.Context) error {
			if err := noArguments(c); err != nil {
				return err
			}
			settings, err := config.FromCLI(c)
			if c.Bool(check.HereFlag) {
				if derr := confine.BecomeDaemon(settings); derr != nil {
					return derr
				}
				settings, err = config.FromCLI(c) // as that user
			}
			found, err := check.ConfigAsDaemon(c.Context, settings, err, depthOf(c))
			if err != nil {
				return err
			}
			if c.Bool("json") {
				if err := text.PrintJSON(c.App.Writer, found); err != nil {
					return err
				}
			} else {
				for _, line := range found.Lines {
					w := c.App.Writer
					if line.Wrong {
						w = c.App.ErrWriter
					}
					fmt.Fprintln(w, line.Text)
				}
			}
			if !found.Usable {
				return cli.Exit("", found.Code)
			}
			return nil
		},
	}
}
