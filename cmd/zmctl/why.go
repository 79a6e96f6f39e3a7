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
		Usage:     "show why a message waits, with names and times",
		UsageText: "zmctl why [--json] ID...",
		Description: `Shows what a message waits for: the host, how long it has failed and its last reply, the time
of the next attempt and of expiry, the operator who holds it, the clause of scheduler.conf
that serves it, its limits, and whether the program that acts next is running.
It uses the files, and a running scheduler if one answers.

    zmctl why S10117782A2CnLkQ0vB8C

Exit codes: 0 shown, 1 there is no such message.`,
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
