package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/urfave/cli/v2"

	"zmailer/internal/admin/trace"
	"zmailer/internal/admin/view"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/config"
)

func traceCommand() *cli.Command {
	return &cli.Command{
		Name:      "trace",
		Usage:     "tell the life of a message across all programs, with the time each step took",
		UsageText: "zmctl trace [--json | --otlp [--no-addresses]] [--log FILE]... [--logs-only] ID...",
		Description: `Puts together what the log, the message's history and the ledger say: each step once, in
the order of time, with the time since the step before it; then each recipient with what
became of it and where its time went; then the messages that it has caused, reports and
copies, in the same way. It works for mail that waits and, as far back as the log reaches,
for mail that is gone.

    zmctl trace S10117782A2CnLkQ0vB8C
    zmctl trace --log /var/log/zmailer.log.3.gz --logs-only S10117782A2CnLkQ0vB8C

The log is that of this postoffice, as zmctl log finds it, with those that were rotated
away from it since the message was accepted. With --log these files are read instead, text
or JSON, compressed or not; - is standard input. With --logs-only nothing else is asked:
it works on a machine that has nothing but the log. See docs/trace.md.

With --otlp it prints the same for OpenTelemetry: the body of an OTLP/HTTP request in JSON,
with a trace for each message that is named.

Exit codes: 0 told, 1 nobody knows of such a message, or a log could not be read.`,
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "json", Usage: "print an object for each message"},
			&cli.BoolFlag{Name: "otlp", Usage: "print OTLP/JSON, one request for all of them"},
			&cli.BoolFlag{Name: "no-addresses", Usage: "with --otlp: without senders, recipients, and what hosts answered"},
			&cli.StringSliceFlag{Name: "log", Usage: "read the log `FILE`, - for standard input; may be given several times"},
			&cli.BoolFlag{Name: "logs-only", Usage: "tell what the log says, and nothing else"},
		},
		Action: runTrace,
	}
}

// Bounds of what is followed from one message to the next.
const (
	mostCaused   = 20 // messages that one has caused
	deepestTrace = 3  // a report on a report on a message
)

// tracer tells lives. It serves one command.
type tracer struct {
	now    time.Time
	po     *postoffice.PostOffice // nil: the log alone is asked
	spool  *view.Spool
	lines  *traceLines
	errs   []error
	within context.Context
}

func runTrace(c *cli.Context) error {
	ids, err := spoolIDs(c, "zmctl queue")
	if err != nil {
		return err
	}
	if c.Bool("otlp") && c.Bool("json") || c.Bool("no-addresses") && !c.Bool("otlp") {
		return traceUsage("--otlp goes without --json, --no-addresses with --otlp")
	}
	t := &tracer{now: time.Now(), within: c.Context}
	if !c.Bool("logs-only") {
		if t.po, _, err = open(c); err != nil {
			return err
		}
		defer closeFS(t.po)
		t.spool = view.New(t.po, t.now)
	}
	since := t.now
	for _, id := range ids {
		if id.Time().Before(since) {
			since = id.Time()
		}
	}
	if t.lines, err = openLines(c, since.Add(-time.Minute)); err != nil {
		return err
	}
	defer t.lines.close()
	t.lines.find(c.Context, ids)
	out := newStream(c.App.Writer)
	var all []*trace.Life
	for i, id := range ids {
		l := t.life(id, 0)
		switch {
		case l == nil:
		case c.Bool("otlp"):
			all = append(all, l)
		case c.Bool("json"):
			t.fail(jsonLines(out).Encode(l))
		default:
			if i > 0 {
				fmt.Fprintln(out)
			}
			printLife(out, l, "")
		}
	}
	if len(all) > 0 {
		t.fail(printOTLP(out, all, !c.Bool("no-addresses")))
	}
	t.errs = append(t.errs, t.lines.errs...)
	return quiet(errors.Join(append(t.errs, out.flush())...))
}

func (t *tracer) fail(err error) {
	if err != nil {
		t.errs = append(t.errs, err)
	}
}

// life puts a message's life together; nil if nobody knows of it.
func (t *tracer) life(id postoffice.SpoolID, depth int) *trace.Life {
	steps := t.lines.steps(id)
	var m *view.Message
	if t.spool != nil {
		var more []trace.Step
		var err error
		m, more, err = t.spool.TraceFiles(id)
		steps = append(steps, more...)
		if m == nil && len(steps) == 0 || m != nil {
			t.fail(err)
		}
	}
	if len(steps) == 0 {
		if depth == 0 {
			t.fail(fmt.Errorf("trace %s: neither files nor ledger nor log%s know of that message", id, t.lines.places()))
		}
		return nil
	}
	l := trace.New(id.String(), id.Time(), steps, t.now)
	switch {
	case m != nil:
		t.spool.Overlay(l, m)
	case t.spool != nil:
		l.State = "gone"
	}
	for i := range l.Caused {
		c := &l.Caused[i]
		other, err := postoffice.ParseSpoolID(c.ID)
		if err != nil || i >= mostCaused || depth+1 >= deepestTrace {
			continue
		}
		c.Life = t.life(other, depth+1)
	}
	return l
}

// traceUsage is what a bad use of --log is answered with.
func traceUsage(text string) error { return cli.Exit("zmctl trace: "+text, config.ExitUsage) }
