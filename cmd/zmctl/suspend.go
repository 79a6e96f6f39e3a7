package main

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"zmailer/internal/admin/act"
	"zmailer/internal/admin/view"
	"zmailer/internal/postoffice"
	"zmailer/internal/postoffice/suspension"
	"zmailer/internal/run/config"
	"zmailer/internal/run/human"
	"zmailer/internal/ui/text"
)

func suspensionFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "host", Usage: "deliveries to `HOST`, as zmctl queue shows it; * and ? match any text and one character"},
		&cli.StringFlag{Name: "channel", Usage: "deliveries over `CHANNEL`"},
		&cli.StringFlag{Name: "sender", Aliases: []string{"from"}, Usage: "mail from `SENDER`: an address, @example.com, or <> for reports"},
		&cli.StringFlag{Name: "source", Usage: "connections from `ADDRESS`, one of sources= in scheduler.conf"},
		&cli.StringFlag{Name: "reason", Usage: "record `TEXT`; zmctl why, status and orders show it"},
	}
}

func untilFlag() cli.Flag {
	return &cli.StringFlag{Name: "until", Usage: "end it at `WHEN`, like 2h, 3d, 18:00 or 2026-11-22T06:00; without it, at zmctl resume"}
}

func suspendCommand() *cli.Command {
	return &cli.Command{
		Name:      "suspend",
		Usage:     "stop deliveries to a host, over a channel, from a sender or from a source address",
		UsageText: "zmctl suspend [--until WHEN] [--reason TEXT] HOST|CHANNEL/HOST\n   zmctl suspend [--host HOST] [--channel CHANNEL] [--sender SENDER] [--source ADDRESS] [flags]\n   zmctl suspend [--json]",
		Description: `No delivery begins to what is suspended, also not after a restart; deliveries under way end.
Mail is accepted, queued and waits: mail that is in the queue and mail that comes later, also
when the queue has none. While it is suspended it does not expire; if it becomes too old
meanwhile, it is tried once before it is returned to its sender. zmctl retry does not
change that. Several flags in one command all have to match. Without arguments the command lists
what is suspended.

    zmctl suspend --host example.net --until 18:00 --reason "their maintenance"
    zmctl suspend --channel smtp --host '*.example.net'
    zmctl suspend --sender @shop.example
    zmctl suspend --source 192.0.2.25
    zmctl suspend

A source is one of the addresses in sources= of a clause. Each message keeps its own source,
unless a rule on replies moves it to the next one: those that would leave from this one now wait,
and the others go on.

zmctl hold holds messages that are in the queue now, and none that come later. zmctl stop
--accepting refuses new mail. See docs/suspend.md.

Exit codes: 0 done, 1 it is suspended already, 64 bad arguments.`,
		Flags:  append(suspensionFlags(), untilFlag(), &cli.BoolFlag{Name: "json", Usage: "print JSON"}),
		Action: runSuspend,
	}
}

func resumeCommand() *cli.Command {
	return &cli.Command{
		Name:      "resume",
		Usage:     "end what zmctl suspend has begun",
		UsageText: "zmctl resume ORDER...|HOST|CHANNEL/HOST\n   zmctl resume [--host HOST] [--channel CHANNEL] [--sender SENDER] [--source ADDRESS]\n   zmctl resume --all",
		Description: `Ends suspensions: by the name of their order, or with the same arguments as zmctl suspend. What
waits is due at once. zmctl suspend lists the suspensions; zmctl undo suspends it again.

    zmctl resume --host example.net
    zmctl resume 20261126-070000-suspend-4711
    zmctl resume --all

Exit codes: 0 done, 1 nothing that is suspended matches, 64 bad arguments.`,
		Flags:  append(suspensionFlags(), &cli.BoolFlag{Name: "all", Usage: "end all suspensions of deliveries"}, &cli.BoolFlag{Name: "json", Usage: "print JSON"}),
		Action: runResume,
	}
}

// suspensionOf returns what the flags and arguments name; nil: nothing.
func suspensionOf(c *cli.Context) (*suspension.Suspension, error) {
	s := suspension.Suspension{Host: c.String("host"), Channel: c.String("channel"), Sender: c.String("sender"), Source: c.String("source")}
	switch arg := c.Args().First(); {
	case c.NArg() > 1, strings.HasPrefix(arg, "-"):
		return nil, cli.Exit("zmctl "+c.Command.Name+": one host at a time, after the flags; * in it matches any text", config.ExitUsage)
	case arg != "":
		if s.Host != "" {
			return nil, cli.Exit("zmctl "+c.Command.Name+": give the host as --host or as an argument, not both", config.ExitUsage)
		}
		channel, host, both := strings.Cut(arg, "/")
		if !both {
			channel, host = s.Channel, arg
		}
		s.Channel, s.Host = channel, host
	}
	if s == (suspension.Suspension{}) {
		return nil, nil
	}
	x, err := suspension.New(s)
	if err != nil {
		return nil, cli.Exit(fmt.Sprintf("zmctl %s: %v", c.Command.Name, err), config.ExitUsage)
	}
	return x, nil
}

func runSuspend(c *cli.Context) error {
	s, err := suspensionOf(c)
	if err != nil {
		return err
	}
	if s == nil {
		if c.String("until")+c.String("reason") != "" {
			return cli.Exit("zmctl suspend needs a host, or --host, --channel, --sender or --source; --help lists the flags", config.ExitUsage)
		}
		return listSuspensions(c)
	}
	return suspend(c, s)
}

// suspend begins a suspension with the reason and end of the flags.
func suspend(c *cli.Context, s *suspension.Suspension) error {
	until, err := act.ParseUntil(c.String("until"), time.Now())
	if err != nil {
		return cli.Exit("zmctl "+c.Command.Name+" --until "+err.Error(), config.ExitUsage)
	}
	s.Until, s.Reason, s.Who = until, c.String("reason"), who(c.Context)
	po, keep, err := openKeeping(c)
	if err != nil {
		return err
	}
	defer closeFS(po)
	x, err := act.Suspend(po, *s, keep)
	if err != nil {
		return err
	}
	if c.Bool("json") {
		return text.PrintJSON(c.App.Writer, view.Suspensions([]*suspension.Suspension{x}))
	}
	if x.Accepting {
		fmt.Fprintf(c.App.Writer, "new mail is refused; order %s; zmctl start --accepting ends it\n    what is queued goes out: zmctl queue --summary shows what is left\n", x.Order)
		return nil
	}
	fmt.Fprintf(c.App.Writer, "suspended: %s; order %s; zmctl resume %s ends it\n", x.Subject(), x.Order, x.Order)
	if !view.New(po, time.Now()).Runs("scheduler") {
		fmt.Fprintln(c.App.Writer, "    no scheduler is running; the next one applies this")
	}
	return nil
}

// runAccepting has new mail refused, or accepted again.
func runAccepting(c *cli.Context) error {
	if c.NArg() > 0 {
		return cli.Exit("zmctl "+c.Command.Name+" --accepting concerns all new mail; name no daemon", config.ExitUsage)
	}
	s := &suspension.Suspension{Accepting: true}
	if c.Command.Name == "stop" {
		return suspend(c, s)
	}
	return resume(c, act.Resumption{Like: s})
}

func listSuspensions(c *cli.Context) error {
	po, _, err := open(c)
	if err != nil {
		return err
	}
	defer closeFS(po)
	list, err := suspension.Read(po)
	if err != nil {
		return err
	}
	now := time.Now()
	if c.Bool("json") {
		err = text.PrintJSON(c.App.Writer, view.Suspensions(list.Active(now)))
	} else {
		if len(list.Active(now)) == 0 {
			fmt.Fprintln(c.App.Writer, "nothing is suspended")
		}
		text.PrintSuspensions(c.App.Writer, list.Active(now), now)
	}
	for _, d := range list.Damaged {
		err = errors.Join(err, fmt.Errorf("%s; it suspends nothing: mend the line, or zmctl resume --all", human.Clean(d.String())))
	}
	return err
}

func runResume(c *cli.Context) error {
	r := act.Resumption{All: c.Bool("all")}
	for _, arg := range c.Args().Slice() {
		if id, ok := postoffice.ParseOperationID(arg); ok {
			r.Orders = append(r.Orders, id)
		}
	}
	if len(r.Orders) == 0 {
		var err error
		if r.Like, err = suspensionOf(c); err != nil {
			return err
		}
	} else if len(r.Orders) < c.NArg() {
		return cli.Exit("zmctl resume: orders and hosts cannot be mixed", config.ExitUsage)
	}
	if len(r.Orders) == 0 && r.Like == nil && !r.All {
		return cli.Exit("zmctl resume needs an order, or what zmctl suspend was given; zmctl suspend lists the suspensions", config.ExitUsage)
	}
	return resume(c, r)
}

// resume ends suspensions.
func resume(c *cli.Context, r act.Resumption) error {
	po, keep, err := openKeeping(c)
	if err != nil {
		return err
	}
	defer closeFS(po)
	r.Who, r.Reason, r.Keep = who(c.Context), c.String("reason"), keep
	ended, order, err := act.Resume(po, r)
	if errors.Is(err, act.ErrNotSuspended) {
		return fmt.Errorf("%w; zmctl suspend lists what is suspended", err)
	}
	if err != nil {
		return err
	}
	if c.Bool("json") {
		return text.PrintJSON(c.App.Writer, view.Suspensions(ended))
	}
	again := "suspends it"
	for _, s := range ended {
		if s.Accepting {
			again = "refuses it"
			fmt.Fprintln(c.App.Writer, "new mail is accepted")
			continue
		}
		fmt.Fprintf(c.App.Writer, "resumed: %s\n", s.Subject())
	}
	fmt.Fprintf(c.App.Writer, "order %s; zmctl undo %s again\n", order, again)
	return nil
}
