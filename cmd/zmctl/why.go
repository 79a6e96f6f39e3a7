package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/urfave/cli/v2"

	"zmailer/internal/admin/view"
	"zmailer/internal/run/config"
	"zmailer/internal/ui/text"
)

func whyCommand() *cli.Command {
	return &cli.Command{
		Name:      "why",
		Usage:     "tell why a message waits, with names and times",
		UsageText: "zmctl why [--json] ID...",
		Description: `Tells in sentences what a message waits for: which host, since when it is in trouble and
what it said, when it is tried next and until when, who holds it, which clause of
scheduler.conf serves it and which limits there are, and if nobody is there to do it.
What the files say is always told; what only a running scheduler knows, if it answers.

    zmctl why S10117782A2CnLkQ0vB8C

Exit codes: 0 told, 1 there is no such message.`,
		Flags:  []cli.Flag{&cli.BoolFlag{Name: "json", Usage: "print an object for each message"}},
		Action: runWhy,
	}
}

func runWhy(c *cli.Context) error {
	ids, err := spoolIDs(c, "zmctl queue")
	if err != nil {
		return err
	}
	settings, err := config.FromCLI(c)
	if err != nil {
		return err
	}
	po, dir, err := open(c)
	if err != nil {
		return err
	}
	defer closeFS(po)
	var errs []error
	for i, id := range ids {
		s := view.New(po, time.Now()).With(settings)
		r, err := s.Why(c.Context, dir, id)
		errs = append(errs, err)
		switch {
		case r == nil:
		case c.Bool("json"):
			errs = append(errs, text.JSONLines(c.App.Writer).Encode(r))
		default:
			if i > 0 {
				fmt.Fprintln(c.App.Writer)
			}
			text.PrintExplanation(c.App.Writer, r)
		}
	}
	return errors.Join(errs...)
}
