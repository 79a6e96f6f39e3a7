package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/urfave/cli/v2"

	"zmailer/internal/admin/view"
	"zmailer/internal/disk/watch"
	"zmailer/internal/postoffice"
	"zmailer/internal/postoffice/ledger"
	"zmailer/internal/run/config"
	"zmailer/internal/run/human"
	"zmailer/internal/ui/term"
	"zmailer/internal/wire/mailq"
)

func eventsCommand() *cli.Command {
	return &cli.Command{
		Name:      "events",
		Usage:     "tell what happens to messages, as it happens",
		UsageText: "zmctl events [--follow] [--json] [ID...]",
		Description: `Prints what the journals of the ledger hold: for each message spooled, routed, and how
it ended. They reach back to the last time the scheduler folded them (docs/ledger.md);
zmctl history ID tells everything about one message that is still there.

With --follow it goes on from now until it is interrupted, and what the running scheduler
does is among it: delivered, deferred, failed and expired, for each recipient with channel,
host, status and reply; held, released, frozen, thawed, retry, removed, restored and
rerouted, with who ordered it; report. Without a scheduler the journals alone are
followed, and it is asked again every second.

    12:31:02  S10117782A2CnLkQ0vB8C  deferred  joe@a.example  smtp/a.example  4.2.1  450 later

IDs choose messages. "lost N" means that N events came faster than they could be
printed. Lines of the journal say by=ledger in JSON.`,
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "follow", Aliases: []string{"f"}, Usage: "go on from now, as things happen"},
			&cli.BoolFlag{Name: "json", Usage: "print JSON lines"},
		},
		Action: runEvents,
	}
}

// eventPause is how often the journals are looked at without a hint that they were
// written to, callPause how often a scheduler that does not answer is called.
const (
	eventPause = time.Second
	callPause  = time.Second
)

// happening is an event as it is printed.
type happening struct {
	Time       time.Time        `json:"time"`
	Event      string           `json:"event"`
	By         string           `json:"by,omitempty"`
	ID         string           `json:"id,omitempty"`
	Rcpt       string           `json:"rcpt,omitempty"`
	Channel    string           `json:"channel,omitempty"`
	Host       string           `json:"host,omitempty"`
	Status     string           `json:"status,omitempty"`
	Reply      string           `json:"reply,omitempty"`
	Who        string           `json:"who,omitempty"`
	Reason     string           `json:"reason,omitempty"`
	Why        string           `json:"why,omitempty"`
	Recipients int64            `json:"recipients,omitempty"`
	Ends       *ledger.Outcomes `json:"ends,omitempty"`
	Count      uint64           `json:"count,omitempty"` // of lost ones
}

// eventPrinter prints events, from two sources.
type eventPrinter struct {
	mu   sync.Mutex
	w    io.Writer
	json bool
	ids  map[string]bool // nil: all
}

func runEvents(c *cli.Context) error {
	p := &eventPrinter{w: c.App.Writer, json: c.Bool("json")}
	for _, arg := range c.Args().Slice() {
		id, err := postoffice.ParseSpoolID(arg)
		if err != nil {
			return cli.Exit(fmt.Sprintf("%s is no spool ID: %v", arg, err), config.ExitUsage)
		}
		if p.ids == nil {
			p.ids = map[string]bool{}
		}
		p.ids[id.String()] = true
	}
	po, dir, err := open(c)
	if err != nil {
		return err
	}
	defer closeFS(po)
	follow := c.Bool("follow")
	tail := ledger.NewTail(po, !follow)
	defer tail.Close()
	if err := tail.Read(p.entered); err != nil || !follow {
		return err
	}
	return p.follow(c.Context, tail, dir, c.App.ErrWriter)
}

// follow prints what happens until ctx is done or nobody reads it.
func (p *eventPrinter) follow(ctx context.Context, tail *ledger.Tail, dir string, stderr io.Writer) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var both sync.WaitGroup
	both.Go(func() { p.listen(ctx, cancel, dir, stderr) })
	written := watch.Written(ctx, filepath.Join(dir, postoffice.Ledger))
	tick := time.NewTicker(eventPause)
	defer tick.Stop()
	var err error
	for err == nil {
		select {
		case <-written:
			err = tail.Read(p.entered)
			continue
		case <-tick.C:
			err = tail.Read(p.entered)
			continue
		case <-ctx.Done():
		}
		if err = context.Cause(ctx); errors.Is(err, context.Canceled) {
			err = nil
		}
		break
	}
	cancel(nil)
	both.Wait()
	return err
}

// listen prints what the scheduler tells, and calls it again when it ends.
func (p *eventPrinter) listen(ctx context.Context, cancel context.CancelCauseFunc, dir string, stderr io.Writer) {
	silent := false
	for ctx.Err() == nil {
		a, err := view.CallScheduler(ctx, dir)
		if err == nil {
			silent = false
			stop := context.AfterFunc(ctx, a.Close)
			_, err = a.Ask(mailq.Request{Kind: mailq.JSONEvents}, p.heard)
			stop()
			a.Close()
		}
		var unwritten *writeError
		if errors.As(err, &unwritten) {
			cancel(err)
			return
		}
		if !silent && ctx.Err() == nil {
			silent = true
			// To a person; nothing is lost if it cannot be written.
			fmt.Fprintln(stderr, "zmctl: the scheduler does not answer; the journals are followed until it does")
		}
		again := time.NewTimer(callPause)
		select {
		case <-again.C:
		case <-ctx.Done():
		}
		again.Stop()
	}
}

// writeError means that nobody reads what we print.
type writeError struct{ err error }

func (e *writeError) Error() string { return "print events: " + e.err.Error() }
func (e *writeError) Unwrap() error { return e.err }

// heard takes a line of the scheduler. What the journal has too is left to it.
func (p *eventPrinter) heard(line string) error {
	var h happening
	if err := json.Unmarshal([]byte(line), &h); err != nil {
		h = happening{Time: time.Now(), Event: "unreadable", Reason: human.Cut(line, 100)}
	}
	if h.Event == "routed" || h.Event == "finished" {
		return nil
	}
	if h.Time.IsZero() {
		h.Time = time.Now()
	}
	return p.print(&h, line)
}

// entered takes a line of the journal.
func (p *eventPrinter) entered(l ledger.Line) error {
	h := happening{Time: time.UnixMilli(l.Time).UTC(), By: "ledger", ID: l.ID.String(), Recipients: l.N, Why: l.Why}
	switch l.Verb {
	case ledger.In:
		h.Event = "spooled"
	case ledger.Routed:
		if !l.Entered {
			// Whoever accepted it could not write into the ledger: its ID tells when.
			first := happening{Time: l.ID.Time().UTC(), By: "ledger", Event: "spooled", ID: h.ID}
			if err := p.print(&first, ""); err != nil {
				return err
			}
		}
		h.Event = l.Verb.String()
	case ledger.Found, ledger.Moved, ledger.Gone, ledger.Unknown:
		h.Event = l.Verb.String()
	case ledger.Done, ledger.Half:
		h.Event, h.Ends, h.Recipients = "finished", &l.End, l.End.Total()
	default:
		return nil // of processes
	}
	return p.print(&h, "")
}

// print prints an event; raw is its line if it came as one.
func (p *eventPrinter) print(h *happening, raw string) error {
	if p.ids != nil && !p.ids[h.ID] && h.Event != "lost" {
		return nil
	}
	text := raw
	switch {
	case p.json && raw == "":
		b, err := json.Marshal(h)
		if err != nil {
			return fmt.Errorf("print events: %w", err)
		}
		text = string(b)
	case !p.json:
		text = term.Clip(h.line(term.For(p.w), term.Room(p.w, 0, 100)), term.Width(p.w))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, err := fmt.Fprintln(p.w, text); err != nil {
		return &writeError{err}
	}
	return nil
}

// line is an event for people, with so much of an answer.
func (h *happening) line(p term.Paint, answer int) string {
	at := h.Time.Local().Format(time.TimeOnly)
	if h.Event == "lost" {
		return p.Faint(at) + "  " + p.State(h.Event, fmt.Sprintf("lost %d events", h.Count))
	}
	words := []string{p.Faint(at), p.Bold(h.ID), p.State(h.state(), h.Event)}
	for _, word := range []string{h.Rcpt, threadName(h.Channel, h.Host), h.Status, human.Cut(h.Reply, answer), h.Who, human.Cut(h.Reason, answer), h.Why} {
		if word != "" {
			words = append(words, human.Clean(word))
		}
	}
	switch {
	case h.Ends != nil:
		words = append(words, endWords(h.Ends))
	case h.Recipients > 0:
		words = append(words, human.Count(int(h.Recipients), "recipient"))
	}
	return strings.Join(words, "  ")
}

// state is what the event is coloured by: the end of a message by that of its recipients.
func (h *happening) state() string {
	if h.Ends != nil && h.Ends.Failed+h.Ends.Silent+h.Ends.Expired+h.Ends.Gone+h.Ends.Unknown > 0 {
		return view.Failed
	}
	return h.Event
}

func threadName(channel, host string) string {
	if channel == "" {
		return host
	}
	return channel + "/" + host
}

// endWords are the columns that are not zero.
func endWords(o *ledger.Outcomes) string {
	var words []string
	for _, c := range []struct {
		word string
		n    int64
	}{{"delivered", o.Delivered}, {"failed", o.Failed}, {"failed silently", o.Silent}, {"expired", o.Expired}, {"removed", o.Removed},
		{"rerouted", o.Rerouted}, {"gone", o.Gone}, {"unknown", o.Unknown}} {
		if c.n > 0 {
			words = append(words, fmt.Sprintf("%d %s", c.n, c.word))
		}
	}
	return strings.Join(words, ", ")
}
