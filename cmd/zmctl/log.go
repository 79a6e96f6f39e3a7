package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"zmailer/internal/admin/logread"
	"zmailer/internal/admin/view"
	"zmailer/internal/disk/lastgood"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/config"
	"zmailer/internal/run/logging"
	"zmailer/internal/ui/term"
	"zmailer/internal/ui/text"
)

func logCommand() *cli.Command {
	return &cli.Command{
		Name: "log", Usage: "print the log of the daemons, or selected lines",
		UsageText: "zmctl log [--follow] [--since TIME] [--event WORD] [--daemon NAME] [--level LEVEL] [--match KEY=VALUE] [--json] [ID...]",
		Description: `Prints the lines of the log that match all flags; docs/log.md explains the events. With spool
IDs it prints the lines that contain one of them, so that zmctl log ID shows the events of a
message and of the reports that it caused.

    zmctl log --level warn --since 2h
    zmctl log S10117782A2CnLkQ0vB8C
    zmctl log --follow --event 'deferred,failed' --match host=*.example.org

If systemd runs the daemons it reads the journal, otherwise LOGFILE or the file log in the
postoffice; --file names another file, - is standard input. It reads text and JSON. With
--since or an ID it also reads rotated files, compressed or not. On a terminal lines are
shortened and coloured, elsewhere they are unchanged.

TIME is like 15m, 2h, 3d, 15:04, 2026-11-22, "2026-11-22 15:04", today or yesterday. --event
and --match may contain * and ?.

Exit codes: 0 lines were found, or followed, 1 no lines were found, or the log cannot be
read, 64 bad arguments, 78 bad configuration.`,
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "follow", Aliases: []string{"f"}, Usage: "print new lines as they are written"},
			&cli.StringFlag{Name: "since", Usage: "print lines since `TIME`"},
			&cli.StringFlag{Name: "until", Usage: "print lines until `TIME`"},
			&cli.StringSliceFlag{Name: "id", Usage: "print lines that contain the spool `ID`, like an argument"},
			&cli.StringSliceFlag{Name: "event", Aliases: []string{"e"}, Usage: "print lines with the event `WORD`"},
			&cli.StringSliceFlag{Name: "daemon", Aliases: []string{"d"}, Usage: "print lines of the program `NAME`: smtpserver, router, scheduler, ta-smtp, ta-mailbox, zmctl"},
			&cli.StringFlag{Name: "level", Usage: "print lines of `LEVEL` or higher: debug, info, warn or error"},
			&cli.StringSliceFlag{Name: "match", Aliases: []string{"m"}, Usage: "print lines with `KEY=VALUE`; all given pairs must match"},
			&cli.IntFlag{Name: "lines", Aliases: []string{"n"}, Usage: "print only the last `N` matching lines"},
			&cli.StringFlag{Name: "file", Usage: "read `FILE`"},
			&cli.BoolFlag{Name: "json", Usage: "print one JSON object per line"},
		},
		Action: runLog,
	}
}

func runLog(c *cli.Context) error {
	filter, err := logFilter(c, time.Now())
	if err != nil {
		return cli.Exit(err, config.ExitUsage)
	}
	source, err := findLog(c)
	if err != nil {
		return err
	}
	out := text.NewStream(c.App.Writer)
	p := &text.LogPrinter{W: out, Filter: filter, JSON: c.Bool("json"), Paint: term.For(c.App.Writer), Last: c.Int("lines"), Other: filter.TakesOthers()}
	p.Short = term.Terminal(c.App.Writer)
	if c.Bool("follow") {
		if p.Last == 0 && filter.Since.IsZero() {
			p.Last = 10
		}
		return text.Quiet(source.Follow(c.Context, filter.Since, p.Line, func() error { return errors.Join(p.End(), out.Flush()) }))
	}
	since := filter.Since
	if since.IsZero() && len(filter.IDs) == 0 {
		since = time.Now() // none that was rotated away
	}
	err = text.Quiet(errors.Join(source.Each(c.Context, since, p.Line), p.End(), out.Flush()))
	if err == nil && p.Shown == 0 {
		return cli.Exit("", 1)
	}
	return err
}

func logFilter(c *cli.Context, now time.Time) (f logread.Filter, err error) {
	f = logread.Filter{Events: atCommas(c.StringSlice("event")), Programs: atCommas(c.StringSlice("daemon"))}
	for _, id := range slices.Concat(c.StringSlice("id"), c.Args().Slice()) {
		if _, err := postoffice.ParseSpoolID(id); err != nil {
			return f, err
		}
		f.IDs = append(f.IDs, id)
	}
	if f.Level, err = logread.ParseLevel(c.String("level")); err != nil {
		return f, fmt.Errorf("--level: %w", err)
	}
	for name, to := range map[string]*time.Time{"since": &f.Since, "until": &f.Until} {
		if text := c.String(name); text != "" {
			if *to, err = logread.ParseTime(text, now); err != nil {
				return f, fmt.Errorf("--%s: %w", name, err)
			}
		}
	}
	for _, m := range c.StringSlice("match") {
		key, value, ok := strings.Cut(m, "=")
		if !ok || key == "" {
			return f, fmt.Errorf("--match %s: it must be like host=mx.example.org", m)
		}
		f.Match = append(f.Match, logging.Field{Key: key, Value: value})
	}
	if c.Int("lines") < 0 {
		return f, errors.New("--lines: less than nothing")
	}
	return f, nil
}

func atCommas(lists []string) []string {
	var all []string
	for _, l := range lists {
		all = append(all, strings.Split(l, ",")...)
	}
	return all
}

func findLog(c *cli.Context) (*logread.Source, error) {
	if name := c.String("file"); name == "-" {
		return &logread.Source{In: reader(c)}, nil
	} else if name != "" {
		return &logread.Source{File: name}, nil
	}
	settings, err := lastgood.Accepted(c)
	if err != nil {
		return nil, err
	}
	return logread.Locate(c.Context, settings)
}

// reader is standard input.
func reader(c *cli.Context) io.Reader {
	if c.App.Reader != nil {
		return c.App.Reader
	}
	return os.Stdin
}

func eventsCommand() *cli.Command {
	return &cli.Command{
		Name:      "events",
		Usage:     "show the events of messages, also as they happen",
		UsageText: "zmctl events [--follow] [--json] [ID...]",
		Description: `Prints the events in the journals of the ledger: when each message was spooled, routed and
finished. They reach back to the last time the scheduler compacted them (docs/ledger.md);
zmctl history ID shows everything about one message that still exists.

With --follow it prints new events until it is interrupted, including those of the running
scheduler: delivered, deferred, failed and expired, for each recipient with channel,
host, status and reply; held, released, frozen, thawed, retry, removed, restored and
rerouted, with the operator; report. While no scheduler answers only the journals are
followed, and it is called again every second.

    12:31:02  S10117782A2CnLkQ0vB8C  deferred  joe@a.example  smtp/a.example  4.2.1  450 later

IDs select messages. "lost N" means that N events came faster than they could be
printed. Lines of the journal have by=ledger in JSON.`,
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "follow", Aliases: []string{"f"}, Usage: "print new events as they happen"},
			&cli.BoolFlag{Name: "json", Usage: "print JSON lines"},
		},
		Action: runEvents,
	}
}

func runEvents(c *cli.Context) error {
	ids := map[string]bool{}
	for _, arg := range c.Args().Slice() {
		id, err := postoffice.ParseSpoolID(arg)
		if err != nil {
			return cli.Exit(err, config.ExitUsage)
		}
		ids[id.String()] = true
	}
	po, dir, err := open(c)
	if err != nil {
		return err
	}
	defer closeFS(po)
	s := &view.EventStream{PO: po, Dir: dir, Emit: func(e *view.Event) error {
		if len(ids) > 0 && !ids[e.ID] && e.Event != "lost" {
			return nil
		}
		if err := text.PrintEvent(c.App.Writer, e, c.Bool("json")); err != nil {
			return fmt.Errorf("print events: %w", err)
		}
		return nil
	}, Silent: func() {
		// For an operator; nothing is lost if it cannot be written.
		fmt.Fprintln(c.App.ErrWriter, "zmctl: the scheduler does not answer; the journals are followed until it does")
	}}
	if c.Bool("follow") {
		return s.Follow(c.Context)
	}
	return s.Past()
}
