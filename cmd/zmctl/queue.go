package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"time"

	"github.com/urfave/cli/v2"

	"zmailer/internal/admin/view"
	"zmailer/internal/run/config"
	"zmailer/internal/ui/text"
)

func queueCommand() *cli.Command {
	return &cli.Command{
		Name:      "queue",
		Usage:     "show queued mail: as list, tree, counts or ages",
		UsageText: "zmctl queue [--tree|--counts|--ages|--summary] [--json] [selecting flags] [ID...]",
		Description: `Lists every message that is not yet delivered: those in router/ and queue/, those
that were set aside in deferred/ and freezer/, and the only copies in postman/. For each
recipient it shows the channel and host, the number of attempts, the time of the next one,
and the last reply.

    S10117782A2CnLkQ0vB8C  12m  4.1k  <sender@client.example.net>  queued
        smtp/c.example.com  defer1@c.example.com  waiting, 2 attempts, next in 1m:
            451 4.3.0 try again later
        smtp/c.example.com  ok@c.example.com  delivered

    zmctl queue --host c.example.com --state waiting
    zmctl queue --tree --older 1d
    zmctl queue --counts
    zmctl queue --ages
    zmctl queue --json --reply greylist | jq -r .id

Up to 10000 messages are sorted, the oldest first; more are printed at once, in directory
order. The command takes no lock and delays no daemon. zmctl show ID shows everything about
one message, zmctl why ID why it waits.
` + selectorHelp,
		Flags: append([]cli.Flag{
			&cli.BoolFlag{Name: "tree", Usage: "print channels and hosts, those with most mail first, with their oldest messages"},
			&cli.BoolFlag{Name: "counts", Usage: "print the number of recipients per state, channel, host and sender"},
			&cli.BoolFlag{Name: "ages", Usage: "print a table of hosts and ages"},
			&cli.BoolFlag{Name: "summary", Usage: "print a few lines about the whole queue"},
			&cli.IntFlag{Name: "top", Value: 10, Usage: "print `N` lines of each kind in tree, counts and ages; 0: all"},
			&cli.BoolFlag{Name: "readable", Usage: "list only files that you may read, without errors for others, as mailq does"},
			&cli.BoolFlag{Name: "json", Usage: "print JSON: for the list one object per line, for other views one object"},
		}, selectorFlags()...),
		Action: runQueue,
	}
}

func runQueue(c *cli.Context) error {
	sel, err := chosen(c)
	if err != nil {
		return err
	}
	po, _, err := open(c)
	if err != nil {
		return err
	}
	defer closeFS(po)
	s := view.New(po, time.Now())
	out := text.NewStream(c.App.Writer)
	v, err := chooseView(c, out, s.Now)
	if err != nil {
		return err
	}
	sorted, err := s.Each(c.Context, sel, func(m *view.Message) error {
		if err := v.Add(m); err != nil {
			return err
		}
		return out.Tick()
	})
	hidden := c.Bool("readable") && err != nil && onlyPermission(err)
	if hidden {
		err = nil
	}
	if err == nil || errors.Is(err, view.ErrListing) {
		err = errors.Join(err, v.End(sorted))
	}
	if err = text.Quiet(errors.Join(err, out.Flush())); err == nil && hidden {
		fmt.Fprintln(c.App.ErrWriter, "zmctl: this is the part of the queue that you may read; root and the postoffice's owner see all of it")
	}
	return err
}

// onlyPermission reports whether all that an error consists of is missing permission.
func onlyPermission(err error) bool {
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok || slices.Contains(joined.Unwrap(), view.ErrListing) {
		return errors.Is(err, fs.ErrPermission)
	}
	return !slices.ContainsFunc(joined.Unwrap(), func(e error) bool { return !onlyPermission(e) })
}

func chooseView(c *cli.Context, w io.Writer, now time.Time) (text.QueueView, error) {
	var views []text.QueueView
	top := c.Int("top")
	if top < 0 {
		return nil, cli.Exit("zmctl queue --top: less than nothing", config.ExitUsage)
	}
	asJSON := c.Bool("json")
	if c.Bool("tree") {
		views = append(views, text.NewTree(w, now, top, asJSON))
	}
	if c.Bool("counts") {
		views = append(views, text.NewCounts(w, now, top, asJSON))
	}
	if c.Bool("ages") {
		views = append(views, text.NewAges(w, now, top, asJSON))
	}
	if c.Bool("summary") {
		views = append(views, text.NewSummary(w, now, asJSON))
	}
	switch {
	case len(views) > 1:
		return nil, cli.Exit("zmctl queue: one of --tree, --counts, --ages and --summary", config.ExitUsage)
	case len(views) == 1:
		return views[0], nil
	case asJSON:
		return &text.Lines{Encoder: text.JSONLines(w)}, nil
	}
	return &text.Listing{W: w, Now: now}, nil
}
