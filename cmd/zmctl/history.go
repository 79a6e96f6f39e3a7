package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/urfave/cli/v2"

	"zmailer/internal/admin/view"
	"zmailer/internal/run/human"
	"zmailer/internal/ui/term"
	"zmailer/internal/ui/text"
)

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
		Action: runHistory,
	}
}

func runHistory(c *cli.Context) error {
	ids, err := spoolIDs(c, "zmctl queue")
	if err != nil {
		return err
	}
	po, _, err := open(c)
	if err != nil {
		return err
	}
	defer closeFS(po)
	out := text.NewStream(c.App.Writer)
	p := term.For(out)
	var errs []error
	for i, id := range ids {
		list, err := view.New(po, time.Now()).History(id)
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
