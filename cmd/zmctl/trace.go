package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"zmailer/internal/admin/logread"
	"zmailer/internal/admin/otlp"
	"zmailer/internal/admin/trace"
	"zmailer/internal/admin/view"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/config"
	"zmailer/internal/ui/text"
)

func traceCommand() *cli.Command {
	return &cli.Command{
		Name:  "trace",
		Usage: "show all steps of a message across all programs, with the time of each",
		UsageText: "zmctl trace [--json | --otlp [--no-addresses]] [--log FILE]... [--logs-only] ID...\n" +
			"zmctl trace [--since TIME] [--until TIME] [--limit N] [--full | --json] [--log FILE]... [--logs-only] WORD",
		Description: `Combines the log, the message's history and the ledger: each step once, in order, with the
time since the previous step; then each recipient with its outcome and the time that each
phase took; then the messages that it caused, reports and copies, in the same way. It works
for queued mail and, as far back as the log reaches, for mail that is gone.

    zmctl trace S10117782A2CnLkQ0vB8C
    zmctl trace --log /var/log/zmailer.log.3.gz --logs-only S10117782A2CnLkQ0vB8C

With WORD it searches the log, the rotated files included, and the queue: WORD is an address (as
sender, recipient or recipient before aliases), a domain like @example.com, a Message-ID, a user
who logged in, or a client's address or host name. It prints a line for each recipient, and
behind them one for each sender, recipient or message that was refused.

    zmctl trace alice@example.com --since yesterday
    zmctl trace --full '<20261122.4711@client.example>'

The log is that of this postoffice, as in zmctl log, with the files that were rotated since
the message was accepted. With --log these files are read instead, text or JSON, compressed
or not; - is standard input. With --logs-only only the log is used; this works also on a
machine without the postoffice. See docs/trace.md.

With --otlp it prints the same for OpenTelemetry: the body of an OTLP/HTTP request in JSON,
with a trace for each given message.

Exit codes: 0 shown, 1 no such message, or a log could not be read.`,
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "json", Usage: "print an object for each message"},
			&cli.BoolFlag{Name: "otlp", Usage: "print OTLP/JSON, one request for all of them"},
			&cli.BoolFlag{Name: "no-addresses", Usage: "with --otlp: leave out senders, recipients and the replies of hosts"},
			&cli.StringSliceFlag{Name: "log", Usage: "read the log `FILE`, - for standard input; may be given several times"},
			&cli.BoolFlag{Name: "logs-only", Usage: "use only the log"},
			&cli.StringFlag{Name: "since", Usage: "with WORD: lines of the log since `TIME` like 15m, 2h, 3d, 15:04, 2026-11-22, today, yesterday"},
			&cli.StringFlag{Name: "until", Usage: "with WORD: lines until `TIME`"},
			&cli.IntFlag{Name: "limit", Value: 1000, Usage: "with WORD: the newest `N` messages, at most 1000"},
			&cli.BoolFlag{Name: "full", Usage: "with WORD: print all steps of each message"},
		},
		Action: runTrace,
	}
}

func runTrace(c *cli.Context) error {
	args, err := flagsBehind(c)
	if err != nil {
		return err
	}
	if len(args) == 1 {
		if _, err := postoffice.ParseSpoolID(args[0]); err != nil {
			return searchLog(c, args[0])
		}
	}
	ids, err := spoolIDsOf(args)
	if err != nil {
		return err
	}
	if c.Bool("otlp") && c.Bool("json") || c.Bool("no-addresses") && !c.Bool("otlp") {
		return traceUsage("--otlp and --json exclude each other; --no-addresses requires --otlp")
	}
	t, done, err := tracer(c)
	if err != nil {
		return err
	}
	defer done()
	lives, err := t.Trace(c.Context, ids)
	out := text.NewStream(c.App.Writer)
	errs := []error{err}
	if c.Bool("otlp") && len(lives) > 0 {
		errs = append(errs, printOTLP(out, lives, !c.Bool("no-addresses")))
		lives = nil
	}
	for i, l := range lives {
		if c.Bool("json") {
			errs = append(errs, text.JSONLines(out).Encode(l))
			continue
		}
		if i > 0 {
			fmt.Fprintln(out)
		}
		text.PrintLife(out, l, "")
	}
	return text.Quiet(errors.Join(append(errs, out.Flush())...))
}

// tracer opens the postoffice, unless only the log is used, and the log: the files of --log,
// or the log of this postoffice. Call done at the end.
func tracer(c *cli.Context) (t *view.Tracer, done func(), err error) {
	t, done = &view.Tracer{Now: time.Now()}, func() {}
	if !c.Bool("logs-only") {
		po, _, err := open(c)
		if err != nil {
			return nil, nil, err
		}
		done = func() { closeFS(po) }
		t.Spool = view.New(po, t.Now)
	}
	remove, err := traceLog(c, t)
	if err != nil {
		done()
		return nil, nil, err
	}
	closed := done
	return t, func() { remove(); closed() }, nil
}

// traceLog sets what a trace reads. Call done at the end.
func traceLog(c *cli.Context, t *view.Tracer) (done func(), err error) {
	done = func() {}
	files := c.StringSlice("log")
	if len(files) == 0 {
		found, err := findLog(c)
		switch {
		case err == nil:
			t.Read(found)
		case c.Bool("logs-only"):
			return nil, err
		} // else the rest is shown without it
		return done, nil
	}
	t.Where = c.StringSlice("log")
	var dropped string
	for i, name := range files {
		if name != "-" {
			continue
		}
		if dropped != "" {
			return nil, traceUsage("standard input can be read once")
		}
		if dropped, err = keepInput(os.Stdin); err != nil {
			return nil, err
		}
		files[i] = dropped
		done = func() { _ = os.Remove(dropped) } // it is ours, in the directory for temporary files
	}
	t.Log = func(_ context.Context, _ time.Time, fn func([]byte) error) error {
		for _, name := range files {
			if err := logread.EachOf(name, fn); err != nil {
				return err
			}
		}
		return nil
	}
	t.Scan = func(ctx context.Context, _ time.Time, pick logread.Pick, fn func([]byte) error) error {
		return logread.ScanFiles(ctx, files, 0, pick, fn)
	}
	return done, nil
}

// keepInput copies standard input into a file: it is read more than once.
func keepInput(r io.Reader) (string, error) {
	f, err := os.CreateTemp("", "zmctl-trace-")
	if err != nil {
		return "", fmt.Errorf("keep standard input: %w", err)
	}
	_, err = io.Copy(f, r)
	if err = errors.Join(err, f.Close()); err != nil {
		return "", fmt.Errorf("keep standard input: %w", errors.Join(err, os.Remove(f.Name())))
	}
	return f.Name(), nil
}

// traceUsage is what a bad use of --log is answered with.
func traceUsage(text string) error { return cli.Exit("zmctl trace: "+text, config.ExitUsage) }

// printOTLP prints lives as the body of a request to a collector of OpenTelemetry.
func printOTLP(w io.Writer, lives []*trace.Life, addresses bool) error {
	host, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("trace: %w", err)
	}
	b, err := otlp.Request(lives, otlp.Options{Host: host, Version: config.Version, Addresses: addresses})
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "%s\n", b)
	return err
}

// flagsBehind returns the arguments and sets the flags among them: people put --since behind
// the address.
func flagsBehind(c *cli.Context) (args []string, err error) {
	list := c.Args().Slice()
	for i := 0; i < len(list); i++ {
		name, value, given := strings.Cut(strings.TrimLeft(list[i], "-"), "=")
		if !strings.HasPrefix(list[i], "--") || len(list[i]) == 2 {
			args = append(args, list[i])
			continue
		}
		switch name {
		case "since", "until", "limit", "log":
			if !given && i+1 < len(list) {
				i++
				value = list[i]
			}
		default:
			value = "true"
		}
		if err := c.Set(name, value); err != nil {
			return nil, traceUsage(list[i] + ": " + err.Error())
		}
	}
	return args, nil
}

// spoolIDsOf reads arguments that are to be spool IDs.
func spoolIDsOf(args []string) (ids []postoffice.SpoolID, err error) {
	if len(args) == 0 {
		return nil, traceUsage("it needs a spool ID, an address or a Message-ID")
	}
	for _, arg := range args {
		id, err := postoffice.ParseSpoolID(arg)
		if err != nil {
			return nil, cli.Exit("zmctl trace: "+err.Error()+"; one word alone may also be an address or a Message-ID", config.ExitUsage)
		}
		ids = append(ids, id)
	}
	return ids, nil
}

// searchLog prints the messages that a word belongs to.
func searchLog(c *cli.Context, word string) error {
	if c.Bool("otlp") {
		return traceUsage("--otlp requires spool IDs")
	}
	now := time.Now()
	q := view.Search{Word: word, Most: c.Int("limit")}
	for name, to := range map[string]*time.Time{"since": &q.Since, "until": &q.Until} {
		if s := c.String(name); s != "" {
			at, err := logread.ParseTime(s, now)
			if err != nil {
				return traceUsage("--" + name + ": " + err.Error())
			}
			*to = at
		}
	}
	t, done, err := tracer(c)
	if err != nil {
		return err
	}
	defer done()
	found, err := t.Find(c.Context, q)
	if errors.Is(err, view.ErrShortSearch) {
		return traceUsage(word + ": " + err.Error())
	}
	if len(found.Lives)+len(found.Refused) == 0 {
		return errors.Join(err, cli.Exit("zmctl trace: nothing is known of "+word, 1))
	}
	out := text.NewStream(c.App.Writer)
	errs := []error{err}
	switch {
	case c.Bool("json"):
		for _, l := range found.Lives {
			errs = append(errs, text.JSONLines(out).Encode(l))
		}
	case c.Bool("full"):
		for i, l := range found.Lives {
			if i > 0 {
				fmt.Fprintln(out)
			}
			text.PrintLife(out, l, "")
		}
	default:
		text.PrintFound(out, found, &q)
	}
	return text.Quiet(errors.Join(append(errs, out.Flush())...))
}
