package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"zmailer/internal/admin/view"
	"zmailer/internal/postoffice"
	"zmailer/internal/postoffice/ledger"
	"zmailer/internal/run/config"
	"zmailer/internal/run/human"
	"zmailer/internal/ui/term"
)

func eventsCommand() *cli.Command {
	return &cli.Command{
		Name:      "events",
		Usage:     "show what happens to messages, as it happens",
		UsageText: "zmctl events [--follow] [--json] [ID...]",
		Description: `Prints what the journals of the ledger hold: for each message spooled, routed, and how
it ended. They reach back to the last time the scheduler folded them (docs/ledger.md);
zmctl history ID shows everything about one message that is still there.

With --follow it goes on from now until it is interrupted, and includes what the running
scheduler does: delivered, deferred, failed and expired, for each recipient with channel,
host, status and reply; held, released, frozen, thawed, retry, removed, restored and
rerouted, with the user who gave the order; report. Without a scheduler the journals alone
are followed, and it is called again every second.

    12:31:02  S10117782A2CnLkQ0vB8C  deferred  joe@a.example  smtp/a.example  4.2.1  450 later

IDs select messages. "lost N" means that N events came faster than they could be
printed. Lines of the journal have by=ledger in JSON.`,
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "follow", Aliases: []string{"f"}, Usage: "go on from now, as things happen"},
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
		if err := printEvent(c.App.Writer, e, c.Bool("json")); err != nil {
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

func printEvent(w io.Writer, e *view.Event, asJSON bool) error {
	var text string
	switch {
	case !asJSON:
		text = term.Clip(eventLine(e, term.For(w), term.Room(w, 0, 100)), term.Width(w))
	case e.Raw != "":
		text = e.Raw
	default:
		b, err := json.Marshal(e)
		if err != nil {
			return err
		}
		text = string(b)
	}
	_, err := fmt.Fprintln(w, text)
	return err
}

// eventLine is an event for people, with so much of an answer.
func eventLine(e *view.Event, p term.Paint, answer int) string {
	at := e.Time.Local().Format(time.TimeOnly)
	if e.Event == "lost" {
		return p.Faint(at) + "  " + p.State(e.Event, fmt.Sprintf("lost %d events", e.Count))
	}
	state, thread := e.Event, e.Host
	if e.Bad() {
		state = view.Failed
	}
	if e.Channel != "" {
		thread = e.Channel + "/" + e.Host
	}
	words := []string{p.Faint(at), p.Bold(e.ID), p.State(state, e.Event)}
	for _, word := range []string{e.Rcpt, thread, e.Status, human.Cut(e.Reply, answer), e.Who, human.Cut(e.Reason, answer), e.Why} {
		if word != "" {
			words = append(words, human.Clean(word))
		}
	}
	switch {
	case e.Ends != nil:
		words = append(words, endWords(e.Ends))
	case e.Recipients > 0:
		words = append(words, human.Count(int(e.Recipients), "recipient"))
	}
	return strings.Join(words, "  ")
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
