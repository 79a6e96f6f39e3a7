package main

import (
	"errors"
	"slices"
	"time"

	"github.com/urfave/cli/v2"

	"zmailer/internal/admin/act"
	"zmailer/internal/disk/lastgood"
	"zmailer/internal/postoffice"
	"zmailer/internal/ui/text"
)

func cleanupCommand() *cli.Command {
	return &cli.Command{
		Name:      "cleanup",
		Usage:     "delete expired copies and removed mail, and list mail that waits for an operator",
		UsageText: "zmctl cleanup [--dry-run] [--json | --quiet]",
		Description: `Deletes the files that the daemons delete every few minutes: copies in postman/ older than
POSTMANKEEP, messages in removed/ and operations in orders/ older than REMOVEDKEEP, and texts
whose message has left. Then it lists files that are never deleted by age: accepted mail in
deferred/ and freezer/, only copies in postman/, and quarantine/. Use zmctl resubmit, zmctl
freezer and zmctl postman for the mail; remove files in quarantine/ with rm.

    zmctl cleanup --dry-run

Exit codes: 0 done, 1 something could not be deleted, 64 bad arguments.`,
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "dry-run", Aliases: []string{"n"}, Usage: "print the files that would be deleted, and delete nothing"},
			&cli.BoolFlag{Name: "json", Usage: "print one JSON object"},
			&cli.BoolFlag{Name: "quiet", Aliases: []string{"q"}, Usage: "print only the totals and the files that could not be deleted"},
		},
		Action: runCleanup,
	}
}

func runCleanup(c *cli.Context) error {
	if err := noArguments(c); err != nil {
		return err
	}
	settings, err := lastgood.Accepted(c)
	if err != nil {
		return err
	}
	postmanKeep, err := settings.Duration("POSTMANKEEP", postoffice.DefaultPostmanKeep)
	if err != nil {
		return err
	}
	po, removedKeep, err := openKeeping(c)
	if err != nil {
		return err
	}
	defer closeFS(po)
	bar := newCounter(c, "cleanup", "files")
	po.OnRemove(bar.Step)
	x, err := act.Clean(po, time.Now(), postmanKeep, removedKeep, c.Bool("dry-run"))
	bar.End()
	if c.Bool("json") {
		err = errors.Join(err, text.PrintJSON(c.App.Writer, x))
	} else {
		err = errors.Join(err, text.PrintCleanup(x, c.App.Writer, c.Bool("quiet")))
	}
	if err == nil && slices.ContainsFunc(x.Dropped, func(d act.Cleaned) bool { return d.Left != "" }) {
		return cli.Exit("", 1)
	}
	return err
}
