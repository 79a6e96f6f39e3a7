package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/urfave/cli/v2"

	"zmailer/internal/admin/view"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/config"
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
		Action: runShow,
	}
}

func runShow(c *cli.Context) error {
	if c.NArg() == 0 {
		return cli.Exit("zmctl show needs a spool ID; zmctl queue shows them", config.ExitUsage)
	}
	po, _, err := open(c)
	if err != nil {
		return err
	}
	defer closeFS(po)
	settings, err := config.FromCLI(c)
	if err != nil {
		return err
	}
	var ids []postoffice.SpoolID
	for _, arg := range c.Args().Slice() {
		id, err := postoffice.ParseSpoolID(arg)
		if err != nil {
			return cli.Exit(err, config.ExitUsage)
		}
		ids = append(ids, id)
	}
	var errs []error
	for i, id := range ids {
		s := view.New(po, time.Now()).With(settings)
		m, err := s.Shown(id)
		errs = append(errs, err)
		switch {
		case m == nil:
		case c.Bool("json"):
			errs = append(errs, text.JSONLines(c.App.Writer).Encode(s.Everything(m)))
		default:
			if i > 0 {
				fmt.Fprintln(c.App.Writer)
			}
			text.ShowMessage(c.App.Writer, s, m)
		}
	}
	return errors.Join(errs...)
}
