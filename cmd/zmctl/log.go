package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"zmailer/internal/admin/logread"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/config"
	"zmailer/internal/run/human"
	"zmailer/internal/run/logging"
	"zmailer/internal/ui/term"
)

func logCommand() *cli.Command {
	return &cli.Command{
		Name: "log", Usage: "read the log of the daemons, all of it or some lines",
		UsageText: "zmctl log [--follow] [--since TIME] [--event WORD] [--daemon NAME] [--level LEVEL] [--match KEY=VALUE] [--json] [ID...]",
		Description: `Prints the lines of the log that fit everything that is asked for; docs/log.md explains
the events. With spool IDs those that name one of them, so that zmctl log ID tells what
became of a message, and of the reports that it caused.

    zmctl log --level warn --since 2h
    zmctl log S10117782A2CnLkQ0vB8C
    zmctl log --follow --event 'deferred,failed' --match host=*.example.org

It reads the journal where systemd runs the daemons, else LOGFILE, else the file log in the
postoffice; --file names another, - is standard input. Text and JSON are both read. With
--since or an ID the files that were rotated away are read, too, compressed ones as well.
On a terminal lines are shown shorter and in colours, elsewhere as they stand.

TIME is like 15m, 2h, 3d, 15:04, 2026-11-22, "2026-11-22 15:04", today or yesterday. In
--event and --match * and ? stand for anything.

Exit codes: 0 lines were found, or followed, 1 none were, or the log cannot be read, 64
bad arguments, 78 bad configuration.`,
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "follow", Aliases: []string{"f"}, Usage: "go on with what is written from now on"},
			&cli.StringFlag{Name: "since", Usage: "lines from `TIME` on"},
			&cli.StringFlag{Name: "until", Usage: "lines up to `TIME`"},
			&cli.StringSliceFlag{Name: "id", Usage: "lines that name the spool `ID`, as an argument does"},
			&cli.StringSliceFlag{Name: "event", Aliases: []string{"e"}, Usage: "lines with the event `WORD`"},
			&cli.StringSliceFlag{Name: "daemon", Aliases: []string{"d"}, Usage: "lines of the program `NAME`: smtpserver, router, scheduler, ta-smtp, ta-mailbox, zmctl"},
			&cli.StringFlag{Name: "level", Usage: "lines from `LEVEL` up: debug, info, warn or error"},
			&cli.StringSliceFlag{Name: "match", Aliases: []string{"m"}, Usage: "lines in which a key has a value, `KEY=VALUE`; each that is given must fit"},
			&cli.IntFlag{Name: "lines", Aliases: []string{"n"}, Usage: "the last `N` lines of them"},
			&cli.StringFlag{Name: "file", Usage: "read `FILE`"},
			&cli.BoolFlag{Name: "json", Usage: "print a JSON object a line"},
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
	out := newStream(c.App.Writer)
	p := &logPrinter{w: out, filter: filter, json: c.Bool("json"), paint: term.For(c.App.Writer), last: c.Int("lines"), other: filter.TakesOthers()}
	p.short = term.Terminal(c.App.Writer)
	if c.Bool("follow") {
		if p.last == 0 && filter.Since.IsZero() {
			p.last = 10
		}
		return quiet(source.Follow(c.Context, filter.Since, p.line, func() error { return errors.Join(p.end(), out.flush()) }))
	}
	since := filter.Since
	if since.IsZero() && len(filter.IDs) == 0 {
		since = time.Now() // none that was rotated away
	}
	err = quiet(errors.Join(source.Each(c.Context, since, p.line), p.end(), out.flush()))
	if err == nil && p.shown == 0 {
		return cli.Exit("", 1)
	}
	return err
}

// logFilter reads the flags.
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

// atCommas parts lists.
func atCommas(lists []string) []string {
	var all []string
	for _, l := range lists {
		all = append(all, strings.Split(l, ",")...)
	}
	return all
}

// logPrinter prints the lines that fit.
type logPrinter struct {
	w      io.Writer
	filter logread.Filter
	json   bool
	short  bool // for a person
	paint  term.Paint
	other  bool // lines of others too
	took   bool // the last of ours
	last   int  // > 0: the last so many of what comes before end
	kept   [][]byte
	shown  int
}

// line takes one line of the log.
func (p *logPrinter) line(raw []byte) error {
	l, ours := logging.ParseLine(raw)
	switch {
	case ours:
		p.took = p.filter.Takes(&l)
	case !p.other || !p.took && !p.filter.Since.IsZero():
		return nil // what a program says as it crashes has the time of the line before
	}
	if ours && !p.took {
		return nil
	}
	var text []byte
	switch {
	case p.json && ours:
		b, err := logread.JSON(string(raw), &l)
		if err != nil {
			return err
		}
		text = b
	case p.json:
		text = fmt.Appendf(nil, `{"text":%s}`, quoteJSON(string(raw)))
	case p.short && ours:
		text = p.forPerson(&l)
	case p.short:
		text = []byte(human.Clean(string(raw)))
	default:
		text = bytes.Clone(raw)
	}
	return p.put(text)
}

// put prints a line, or keeps it as one of the last.
func (p *logPrinter) put(text []byte) error {
	p.shown++
	if p.last > 0 {
		if len(p.kept) == p.last {
			p.kept = p.kept[1:]
		}
		p.kept = append(p.kept, text)
		return nil
	}
	_, err := p.w.Write(append(text, '\n'))
	return err
}

// end prints the lines that were kept; from here on each is printed at once.
func (p *logPrinter) end() error {
	kept := p.kept
	p.kept, p.last = nil, 0
	for _, text := range kept {
		if _, err := p.w.Write(append(text, '\n')); err != nil {
			return err
		}
	}
	return nil
}

// forPerson shows a line shorter: time of day (and day, if it is another), program,
// event, and keys without those that say nothing to people.
func (p *logPrinter) forPerson(l *logging.Line) []byte {
	at := l.Time.Local()
	form := "15:04:05.000"
	if now := time.Now(); at.YearDay() != now.YearDay() || at.Year() != now.Year() {
		form = "2006-01-02 15:04:05"
	}
	event := fmt.Sprintf("%-12s", human.Clean(l.Event))
	switch {
	case l.Level >= slog.LevelError:
		event = p.paint.Red(event)
	case l.Level >= slog.LevelWarn:
		event = p.paint.Yellow(event)
	case l.Event == "delivered":
		event = p.paint.Green(event)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s  %-10s %s", p.paint.Faint(at.Format(form)), human.Clean(l.Program), event)
	for _, f := range l.Fields {
		value := human.Clean(f.Value)
		if f.Key == "id" {
			b.WriteString(" " + p.paint.Bold(value))
			continue
		}
		if value == "" || strings.ContainsAny(value, " =\"") {
			value = `"` + value + `"`
		}
		b.WriteString(" " + p.paint.Faint(human.Clean(f.Key)+"=") + value)
	}
	return []byte(strings.TrimRight(b.String(), " "))
}

// findLog tells where the log of this postoffice is.
func findLog(c *cli.Context) (*logread.Source, error) {
	if name := c.String("file"); name == "-" {
		return &logread.Source{In: reader(c)}, nil
	} else if name != "" {
		return &logread.Source{File: name}, nil
	}
	settings, err := config.FromCLI(c)
	if err != nil {
		return nil, err
	}
	return logread.Locate(c.Context, settings)
}
