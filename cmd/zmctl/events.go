package main

import (
	"fmt"

	"github.com/urfave/cli/v2"

	"zmailer/internal/admin/view"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/config"
	"zmailer/internal/ui/text"
)

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
