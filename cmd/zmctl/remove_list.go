package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/urfave/cli/v2"

	"zmailer/internal/admin/view"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/human"
	"zmailer/internal/ui/term"
	"zmailer/internal/ui/text"
)

func removedCommand() *cli.Command {
	return &cli.Command{
		Name:      "removed",
		Usage:     "list removed mail that zmctl undo can restore",
		UsageText: "zmctl removed [--json]",
		Description: `Lists the messages in removed/ and queued messages with removed recipients, the oldest
removal first, with the recipients that undo would restore.

    S10117782A2CnLkQ0vB8C  removed 12m ago, dropped in 2d23h  4.1k  <sender@client.example.net>
        <ok@c.example.com>`,
		Flags:  []cli.Flag{&cli.BoolFlag{Name: "json", Usage: "print a JSON array"}},
		Action: runRemoved,
	}
}

func runRemoved(c *cli.Context) error {
	if err := noArguments(c); err != nil {
		return err
	}
	po, keep, err := openKeeping(c)
	if err != nil {
		return err
	}
	defer closeFS(po)
	s := view.New(po, time.Now())
	list, err := s.ListRemoved(c.Context, keep)
	if c.Bool("json") {
		return errors.Join(err, text.PrintJSON(c.App.Writer, list))
	}
	for _, r := range list {
		when := "removed " + human.Span(s.Now.Sub(r.Removed)) + " ago"
		switch {
		case r.Until != nil:
			when += ", dropped in " + human.Span(r.Until.Sub(s.Now))
		case r.From == postoffice.Queue && len(r.Files) > 0:
			when += ", still in the queue"
		}
		fmt.Fprintf(c.App.Writer, "%s  %s  %s  %s\n    %s\n", term.For(c.App.Writer).Bold(r.ID), when, human.Size(r.Size), r.Message.From(), human.Addresses(r.Recipients))
	}
	_, perr := fmt.Fprintln(c.App.Writer, human.Count(len(list), "message"))
	return errors.Join(err, perr)
}
