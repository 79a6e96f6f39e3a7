package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"zmailer/internal/admin/confimport"
	"zmailer/internal/admin/importer"
	"zmailer/internal/admin/importer/exim"
	"zmailer/internal/admin/importer/mailbox"
	"zmailer/internal/admin/importer/opensmtpd"
	"zmailer/internal/admin/importer/postfix"
	"zmailer/internal/disk/durable"
	"zmailer/internal/disk/lastgood"
	"zmailer/internal/mail/address"
	"zmailer/internal/postoffice/ledger"
	"zmailer/internal/run/config"
	"zmailer/internal/run/human"
	"zmailer/internal/ui/text"
)

const importExits = `

Exit codes: 0 done, 1 some messages could not be imported and stay in the old queue, 64 PATH
is not such a queue, or its mail system is running, 75 interrupted or the disk is full: run
the same command again to continue, 78 no postoffice.`

func importCommand() *cli.Command {
	queue := func(name, usage, text string, open func(dir string) (importer.Source, error)) *cli.Command {
		return &cli.Command{
			Name: name, Usage: usage, UsageText: "zmctl import " + name + " [flags] PATH", Description: text + importExits,
			Flags: importFlags(&cli.BoolFlag{Name: "running", Usage: "import although the other mail system is running; it may send the same mail"}),
			Action: func(c *cli.Context) error {
				return runImport(c, c.Bool("now"), open)
			},
		}
	}
	box := func(name, usage, text string, open func(path string, e mailbox.Envelope, host string) (importer.Source, error)) *cli.Command {
		return &cli.Command{
			Name: name, Usage: usage, UsageText: "zmctl import " + name + " [flags] --to ADDRESS|--extract PATH", Description: text + importExits,
			Flags: importFlags(
				&cli.StringSliceFlag{Name: "to", Usage: "send each message to `ADDRESS`; may be repeated"},
				&cli.BoolFlag{Name: "extract", Aliases: []string{"t"}, Usage: "send each message to the recipients in its To, Cc and Bcc"},
				&cli.StringFlag{Name: "from", Usage: "the sender of all messages; <> is the null sender; the default is Return-Path or the From line"},
				&cli.BoolFlag{Name: "kept", Usage: "messages keep their age in the mailbox"},
			),
			Action: func(c *cli.Context) error {
				e, err := mailboxEnvelope(c)
				if err != nil {
					return err
				}
				settings, err := lastgood.Accepted(c)
				if err != nil {
					return err
				}
				host := ""
				if !c.Bool("dry-run") {
					if host, err = settings.Hostname(); err != nil {
						return err
					}
				}
				return runImport(c, !c.Bool("kept"), func(path string) (importer.Source, error) { return open(path, e, host) })
			},
		}
	}
	return &cli.Command{
		Name: "import", Usage: "import the queued mail of another mail system", UsageText: "zmctl import postfix|exim|opensmtpd|maildir|mbox [flags] PATH",
		Description: `Imports the messages in another mail system's queue. Each keeps its sender, its open
recipients, their report options and its arrival time. Messages that were on hold there go
to freezer/. You can repeat the command: imported messages are recorded in imports/ and not
imported again (docs/import.md).

    zmctl import postfix --dry-run /var/spool/postfix
    zmctl import postfix --move /var/spool/postfix`,
		Subcommands: []*cli.Command{
			queue("postfix", "the queue of a Postfix", `PATH is the queue directory that postconf queue_directory prints. Stop Postfix first.`,
				func(dir string) (importer.Source, error) { return postfix.Open(dir) }),
			queue("exim", "the spool of an Exim", `PATH is the spool directory that exim -bP spool_directory prints. Stop Exim first.`,
				func(dir string) (importer.Source, error) { return exim.Open(dir) }),
			queue("opensmtpd", "the queue of an OpenSMTPD", `PATH is the spool directory, /var/spool/smtpd. Stop OpenSMTPD first.`,
				func(dir string) (importer.Source, error) { return opensmtpd.Open(dir) }),
			box("maildir", "the messages of a Maildir", `PATH contains new/ and cur/. Each message is sent as if it had arrived now; with --kept
it keeps its age.`,
				func(dir string, e mailbox.Envelope, _ string) (importer.Source, error) {
					return mailbox.OpenMaildir(dir, e)
				}),
			box("mbox", "the messages of an mbox file", `PATH is the file. Each message is sent as if it had arrived now; with --kept it keeps its age.
With --move the file is truncated after all of its messages are imported.`,
				func(file string, e mailbox.Envelope, host string) (importer.Source, error) {
					return mailbox.OpenMbox(file, e, host)
				}),
		},
		Action: needsVerb,
	}
}

func importFlags(more ...cli.Flag) []cli.Flag {
	flags := []cli.Flag{
		&cli.BoolFlag{Name: "dry-run", Aliases: []string{"n"}, Usage: "print the messages that would be imported, and change nothing"},
		&cli.BoolFlag{Name: "move", Usage: "remove imported messages from the old queue"},
		&cli.BoolFlag{Name: "hold", Usage: "put all messages into freezer/; zmctl freezer thaw releases them"},
		&cli.BoolFlag{Name: "quiet", Aliases: []string{"q"}, Usage: "print only the totals and problems"},
		&cli.BoolFlag{Name: "json", Usage: "print an object for each message"},
	}
	if !slices.ContainsFunc(more, func(f cli.Flag) bool { return f.Names()[0] == "kept" }) {
		more = append(more, &cli.BoolFlag{Name: "now", Usage: "treat messages as if they had arrived now"})
	}
	return append(flags, more...)
}

// mailboxEnvelope returns what the flags say of a mailbox's messages.
func mailboxEnvelope(c *cli.Context) (mailbox.Envelope, error) {
	e := mailbox.Envelope{Extract: c.Bool("extract"), HasFrom: c.IsSet("from")}
	wrong := func(format string, args ...any) error {
		return cli.Exit("zmctl import "+c.Command.Name+": "+fmt.Sprintf(format, args...), config.ExitUsage)
	}
	for _, text := range c.StringSlice("to") {
		m, err := address.Parse(text)
		if err != nil || m.IsNull() {
			return e, wrong("--to %.200q is not an address", text)
		}
		e.To = append(e.To, m.String())
	}
	if len(e.To) == 0 && !e.Extract {
		return e, wrong("a mailbox does not say to whom its mail goes: --to ADDRESS, or --extract")
	}
	if e.HasFrom {
		m, err := address.Parse(c.String("from"))
		if err != nil && c.String("from") != "" {
			return e, wrong("--from %.200q is not an address", c.String("from"))
		}
		e.From = m.String()
	}
	return e, nil
}

type importing struct {
	c        *cli.Context
	out      *text.Stream
	progress *text.Progress
	now      time.Time
}

func runImport(c *cli.Context, young bool, open func(path string) (importer.Source, error)) (err error) {
	usage := func(text string) error {
		return cli.Exit("zmctl import "+c.Command.Name+": "+text, config.ExitUsage)
	}
	if c.NArg() != 1 {
		return usage("one PATH is required; see --help")
	}
	path, err := filepath.Abs(c.Args().First())
	if err == nil {
		// A queue has one record, whatever path leads to it.
		if real, rerr := filepath.EvalSymlinks(path); rerr == nil {
			path = real
		}
	}
	if err != nil {
		return err
	}
	source, err := open(path)
	if errors.Is(err, importer.ErrNoQueue) || errors.Is(err, importer.ErrRunning) {
		return usage(err.Error())
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, source.Close()) }()
	if !c.Bool("dry-run") && !c.Bool("running") && len(source.Programs()) > 0 {
		pid, program, err := importer.Running(path, source.Programs())
		if err != nil {
			return err
		}
		if pid != 0 {
			return usage(fmt.Sprintf("%s, pid %d, is running in %s; stop it first, otherwise both systems send the same mail", program, pid, path))
		}
	}
	return importFrom(c, source, path, young)
}

func importFrom(c *cli.Context, source importer.Source, path string, young bool) error {
	po, _, err := open(c)
	if err != nil {
		return err
	}
	defer closeFS(po)
	i := &importing{c: c, out: text.NewStream(c.App.Writer), now: time.Now()}
	conf := importer.Config{PostOffice: po, Source: source, System: c.Command.Name, Path: path, Move: c.Bool("move"), Young: young,
		Hold: c.Bool("hold"), Who: who(c.Context), Tell: i.print,
		Listed: func(n int) { i.progress = newProgress(c, "import", n) }}
	var sum importer.Sum
	if c.Bool("dry-run") {
		sum, err = importer.Look(c.Context, conf)
	} else {
		conf.Journal = ledger.New(po, ledger.Config{Role: "zmctl"})
		sum, err = importer.Run(c.Context, conf)
		conf.Journal.Close()
	}
	i.progress.End()
	if !c.Bool("json") {
		i.end(sum)
	}
	if ferr := text.Quiet(i.out.Flush()); err == nil {
		err = ferr
	}
	switch {
	case errors.Is(err, durable.ErrLocked):
		return cli.Exit("zmctl import: another import of this queue is in progress", config.ExitTempFail)
	case importer.Retry(err):
		return cli.Exit(fmt.Sprintf("zmctl import: %v; run the same command again to continue", err), config.ExitTempFail)
	case err == nil && sum.Failed > 0:
		return cli.Exit("", 1)
	}
	return err
}

func (i *importing) print(r *importer.Result) error {
	i.progress.Step()
	if i.c.Bool("json") {
		return text.Quiet(errors.Join(text.JSONLines(i.out).Encode(r), i.out.Tick()))
	}
	wrong := r.Did == importer.Failed || r.Did == importer.Left || len(r.Notes) > 0
	if (i.c.Bool("quiet") || i.progress.Alone(i.c.App.Writer)) && !wrong {
		return nil
	}
	fmt.Fprintf(i.out, "%-6s  %s", r.Did, human.Clean(r.Message))
	if r.Arrival != nil {
		fmt.Fprintf(i.out, "  %s", human.Span(i.now.Sub(*r.Arrival)))
	}
	if r.Sender != nil {
		fmt.Fprintf(i.out, "  <%s>  %s", human.Clean(*r.Sender), human.Clean(human.Cut(strings.Join(r.Recipients, ", "), 200)))
	}
	if len(r.IDs) > 0 {
		fmt.Fprintf(i.out, "  %s", strings.Join(r.IDs, " "))
	}
	if r.Held != "" {
		fmt.Fprintf(i.out, "  to freezer/: %s", human.Clean(r.Held))
	}
	if r.Why != "" {
		fmt.Fprintf(i.out, "  %s", human.Clean(r.Why))
	}
	fmt.Fprintln(i.out)
	for _, n := range r.Notes {
		fmt.Fprintf(i.out, "        %s\n", human.Clean(n))
	}
	return text.Quiet(i.out.Tick())
}

func (i *importing) end(s importer.Sum) {
	did := "taken"
	if i.c.Bool("dry-run") {
		did = "would be taken"
	}
	words := []string{fmt.Sprintf("%s with %s %s", human.Count(s.Taken, "message"), human.Count(s.Recipients, "recipient"), did)}
	if s.Held > 0 {
		words[0] += fmt.Sprintf(" (%d of them to freezer/)", s.Held)
	}
	for _, n := range []struct {
		n    int
		text string
	}{{s.Before, "taken before"}, {s.Done, "without an open recipient"}, {s.Left, "left there"}, {s.Failed, "could not be taken"}, {s.Moved, "removed from the old queue"}} {
		if n.n > 0 {
			words = append(words, fmt.Sprintf("%d %s", n.n, n.text))
		}
	}
	fmt.Fprintln(i.out, strings.Join(words, ", "))
	if i.c.Bool("dry-run") {
		fmt.Fprintln(i.out, "nothing was changed")
	}
}

func importConfigCommand() *cli.Command {
	return &cli.Command{
		Name: "import-config", Usage: "make a configuration from that of another mail system", UsageText: "zmctl import-config postfix|exim [--json] [--to DIR] PATH",
		Description: `Reads the configuration of another mail system and writes one with the same effect into a
new directory: zmailer.conf, the tables, and report.txt, which says of each setting what it
became, or why you have to decide. Nothing that is in use is changed. Look at the report
and run zmctl check-config there; docs/moving.md describes the move.

    zmctl import-config postfix --to /etc/zmailer.new /etc/postfix
    zmctl import-config exim --to /etc/zmailer.new /etc/exim4`,
		Subcommands: []*cli.Command{{
			Name: "postfix", Usage: "main.cf, master.cf and the tables that they name", UsageText: "zmctl import-config postfix [--json] [--to DIR] PATH",
			Description: `PATH is the directory of main.cf and master.cf. It may be a copy from another machine:
files in /etc/postfix are looked for in PATH. Without --to only the report is printed.

Exit codes: 0 everything was converted, 1 some settings are left to decide by hand, 64 PATH is no
such configuration, 73 DIR is not empty or cannot be written, 78 a file there cannot be read.`,
			Flags:  importConfigFlags(),
			Action: func(c *cli.Context) error { return importConfig(c, confimport.Postfix) },
		}, {
			Name: "exim", Usage: "Debian's update-exim4.conf.conf, or the lists and usual routers of exim.conf", UsageText: "zmctl import-config exim [--json] [--to DIR] PATH",
			Description: `PATH is /etc/exim4, a copy of it, or a configuration file of Exim's. Of Debian's the answers to
debconf are converted, with aliases, email-addresses, hubbed_hosts, mailname, passwd.client and
exim4.conf.localmacros, which are looked for beside it or in /etc. Of other configurations local_domains,
relay_to_domains, relay_from_hosts and the routers of the file that Exim comes with are. The
report names everything else. Without --to only the report is printed.

Exit codes: as of import-config postfix.`,
			Flags:  importConfigFlags(),
			Action: func(c *cli.Context) error { return importConfig(c, confimport.Exim) },
		}},
		Action: needsVerb,
	}
}

func importConfigFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "to", Usage: "write the files into `DIR`, which must be empty or not exist"},
		&cli.BoolFlag{Name: "json", Usage: "print the report as an array of objects"},
	}
}

// importConfig converts a configuration by the function for its mail system.
func importConfig(c *cli.Context, convert func(path string, keep map[string]string) (*confimport.Result, error)) error {
	if c.NArg() != 1 {
		return cli.Exit("want the directory of the configuration; see --help", config.ExitUsage)
	}
	settings, err := config.FromCLI(c)
	if err != nil {
		return err
	}
	dir := c.Args().First()
	// The postoffice, the user of the daemons and the log file stay as they are.
	keep := map[string]string{}
	for _, name := range []string{"POSTOFFICE", "DAEMONUSER", "LOGFILE"} {
		keep[name] = settings.String(name, "")
	}
	result, err := convert(dir, keep)
	if errors.Is(err, fs.ErrNotExist) {
		return cli.Exit(err, config.ExitUsage)
	}
	if err != nil {
		return cli.Exit(err, config.ExitConfig)
	}
	if to := c.String("to"); to != "" {
		if err := writeConfiguration(to, result); err != nil {
			return cli.Exit(err, exitCantCreate)
		}
	}
	if c.Bool("json") {
		encoder := json.NewEncoder(c.App.Writer)
		encoder.SetIndent("", "  ")
		err = encoder.Encode(result.Rows)
	} else {
		_, err = fmt.Fprint(c.App.Writer, result.Report())
	}
	if err == nil && result.Left() > 0 {
		err = cli.Exit("", 1)
	}
	return err
}

// exitCantCreate is EX_CANTCREAT of sysexits(3).
const exitCantCreate = 73

// writeConfiguration writes the new files into a directory that has none yet. Those with
// passwords are for their owner and group alone.
func writeConfiguration(dir string, r *confimport.Result) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	old, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	if len(old) > 0 {
		return fmt.Errorf("%s is not empty: %s is there; name a new directory", dir, old[0].Name())
	}
	root, err := os.OpenRoot(dir) // whoever else may write there gets no other file written
	if err != nil {
		return err
	}
	defer root.Close()
	for _, f := range append(r.Files, confimport.File{Name: "report.txt", Text: r.Report()}) {
		mode := os.FileMode(0o644)
		if f.Secret {
			mode = 0o640
		}
		file, err := root.OpenFile(f.Name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
		if err != nil {
			return err
		}
		_, err = file.WriteString(f.Text)
		if err = errors.Join(err, file.Chmod(mode), file.Sync(), file.Close()); err != nil {
			return err
		}
	}
	return nil
}
