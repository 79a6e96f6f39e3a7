package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"zmailer/internal/admin/selector"
	"zmailer/internal/admin/view"
	"zmailer/internal/run/config"
	"zmailer/internal/ui/text"
	"zmailer/internal/wire/mailq"
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
one message, zmctl why ID why it waits. What zmctl suspend has suspended is printed at the end.
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
		Action: opened(chosen, runQueue),
	}
}

func runQueue(c *cli.Context, o *target, sel selector.Selector) error {
	s := view.New(o.PostOffice, time.Now())
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
	if list := s.Suspended(); len(list) > 0 && !c.Bool("json") {
		text.PrintSuspensions(out, list, s.Now)
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
		views = append(views, text.NewCounts(w, top, asJSON))
	}
	if c.Bool("ages") {
		views = append(views, text.NewAges(w, now, top, asJSON))
	}
	if c.Bool("summary") {
		views = append(views, text.NewSummary(w, asJSON))
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

func threadCommand() *cli.Command {
	return &cli.Command{
		Name:      "thread",
		Usage:     "list the scheduler's threads, or show one with its messages",
		UsageText: "zmctl thread [--json] [CHANNEL/HOST]",
		Description: `Asks the running scheduler for its threads; a thread is the mail for one channel and host.

    THREAD             STATE    N    R  RUN  TRIED  WAIT  OLDEST  TROUBLE
    smtp/a.example     active   4    4  2/5      9     -     12s
    smtp/dead.example  trouble  1  900  0/1      3   13m      1h  connection refused

The columns are: N messages, R recipients, deliveries in progress and their limit, attempts
since the thread exists, the wait until the next one, the age of the oldest message, and the
last error of the host. States: active; waiting, for the next attempt of its messages;
throttled, by rate or hostrate; trouble, the host failed and is tried again after the wait;
probing, it is tried with one message; paused, by queueonly; suspended, by zmctl suspend.
Threads that need attention are first.

With CHANNEL/HOST it shows everything about that thread, and its open recipients.`,
		Flags:  []cli.Flag{&cli.BoolFlag{Name: "json", Usage: "print JSON lines, as the query socket has them (docs/mailq.md)"}},
		Action: runThread,
	}
}

func runThread(c *cli.Context) error {
	if c.NArg() > 1 {
		return cli.Exit("zmctl thread allows at most one CHANNEL/HOST; see --help", config.ExitUsage)
	}
	channel, host, ok := strings.Cut(c.Args().First(), "/")
	if c.NArg() == 1 && (!ok || channel == "" || strings.ContainsAny(channel+host, " \t")) {
		return cli.Exit(c.Args().First()+": a thread is named CHANNEL/HOST, like smtp/example.com", config.ExitUsage)
	}
	a, err := caller(c)
	if err != nil {
		return err
	}
	defer a.Close()
	r := mailq.Request{Kind: mailq.JSONThreads}
	if c.NArg() == 1 {
		r = mailq.Request{Kind: mailq.JSONThread, Channel: channel, Host: host}
	}
	switch w := c.App.Writer; {
	case c.Bool("json"):
		_, err = a.Ask(r, func(line string) error {
			_, err := fmt.Fprintln(w, line)
			return err
		})
	case c.NArg() == 0:
		var list []mailq.ThreadInfo
		if list, err = a.Threads(); err == nil {
			err = text.PrintThreads(w, list)
		}
	default:
		err = a.Thread(channel, host, func(t *mailq.ThreadInfo) error { return text.PrintThread(w, t) },
			func(x *mailq.WaitingInfo) error { return text.PrintWaiting(w, x, time.Now()) })
	}
	if errors.Is(err, mailq.ErrRefused) {
		return errors.New(c.Args().First() + ": " + err.Error())
	}
	return err
}
