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

func showCommand() *cli.Command {
	return &cli.Command{
		Name:      "show",
		Usage:     "show everything about a message",
		UsageText: "zmctl show [--json] ID...",
		Description: `Shows the files of a message, its complete envelope and work specification, its history,
each recipient, and the next step. ID is a spool ID, as in zmctl queue and the logs.

    zmctl show S10117782A2CnLkQ0vB8C

Inode numbers are reused by other messages; the ID also contains the time of the last write,
so a message that is gone is not confused with one that has the same number.

Exit codes: 0 shown, 1 no such message, 64 bad arguments.`,
		Flags:  []cli.Flag{&cli.BoolFlag{Name: "json", Usage: "print an object for each message"}},
		Action: opened(ids("zmctl queue"), runShow),
	}
}

func runShow(c *cli.Context, o *target, ids []postoffice.SpoolID) error {
	var errs []error
	for i, id := range ids {
		x := view.NewExplainer(view.New(o.PostOffice, time.Now()), o.settings)
		m, err := x.Spool.Shown(id)
		errs = append(errs, err)
		switch {
		case m == nil:
		case c.Bool("json"):
			errs = append(errs, text.JSONLines(c.App.Writer).Encode(x.Everything(m)))
		default:
			if i > 0 {
				fmt.Fprintln(c.App.Writer)
			}
			text.ShowMessage(c.App.Writer, x, m)
		}
	}
	return errors.Join(errs...)
}

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
		Action: opened(ids("zmctl queue"), runWhy),
	}
}

func runWhy(c *cli.Context, o *target, ids []postoffice.SpoolID) error {
	var errs []error
	for i, id := range ids {
		x := view.NewExplainer(view.New(o.PostOffice, time.Now()), o.settings)
		r, err := x.Why(c.Context, o.dir, id)
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

func historyCommand() *cli.Command {
	return &cli.Command{
		Name:      "history",
		Usage:     "show all events of a message in order",
		UsageText: "zmctl history [--json] ID...",
		Description: `Shows each step of a message: who submitted it, when it was routed, each attempt
that failed and the reply, holds and other operations with their operator, and reports
to the sender. For a message that is gone it shows the entries of the ledger.

    zmctl history S10117782A2CnLkQ0vB8C

Exit codes: 0 shown, 1 no such message.`,
		Flags:  []cli.Flag{&cli.BoolFlag{Name: "json", Usage: "print an object for each step"}},
		Action: opened(ids("zmctl queue"), runHistory),
	}
}

func runHistory(c *cli.Context, o *target, ids []postoffice.SpoolID) error {
	out := text.NewStream(c.App.Writer)
	p := term.For(out)
	var errs []error
	for i, id := range ids {
		list, err := view.Histories{Spool: view.New(o.PostOffice, time.Now())}.Of(id)
		errs = append(errs, err)
		if c.Bool("json") {
			for j := range list {
				errs = append(errs, text.JSONLines(out).Encode(&list[j]))
			}
			continue
		}
		if i > 0 && len(list) > 0 {
			fmt.Fprintln(out)
		}
		for j := range list {
			fmt.Fprintf(out, "%s  %s\n", p.Faint(list[j].Time.Format(human.TimeFormat)), p.State(list[j].Event, list[j].Text))
		}
	}
	return text.Quiet(errors.Join(append(errs, out.Flush())...))
}
