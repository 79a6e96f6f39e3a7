package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"zmailer/internal/admin/act"
	"zmailer/internal/admin/selector"
	"zmailer/internal/run/config"
)

// verb is the command of a verb for queued mail.
type verb struct {
	*act.Verb
	usage, text string
	example     string // flags of an example, beside those of a selector
	flags       []cli.Flag
	hosts       bool // the arguments are hosts and not spool IDs
}

func reasonFlag() cli.Flag {
	return &cli.StringFlag{Name: "reason", Usage: "record `TEXT` in the history of each message"}
}

// verbs returns all of them, in the order of the help text.
func verbs() []*verb {
	return []*verb{
		{
			Verb: act.Hold, usage: "hold recipients until they are released",
			text: `Held recipients are not tried until zmctl release, or until the time of --until. This time
does not count as age: reports about delay or expiry are sent later by as much.`,
			example: "--until 2h --reason 'their disk is full'",
			flags:   []cli.Flag{&cli.StringFlag{Name: "until", Usage: "end the hold at `WHEN`, like 2h, 3d or 2026-11-22T06:00"}},
		},
		{Verb: act.Release, usage: "end a hold", text: `Recipients that became due meanwhile are tried at once.`},
		{
			Verb: act.Freeze, usage: "freeze recipients until an operator decides; they do not expire",
			text: `Frozen recipients are not tried and do not expire until zmctl thaw. A message in router/
or deferred/ is moved to freezer/.`,
		},
		{
			Verb: act.Thaw, usage: "try frozen recipients again",
			text: `Their times start again: they are due now, their attempts count from one, and they expire
after the expiry of their clause from now. A message in freezer/ goes back to the router.`,
		},
		{
			Verb: act.Retry, usage: "try waiting recipients now",
			text: `Does not wait for the time of the next attempt, and forgets that the host had failed. Held
and frozen recipients are not changed. A message in deferred/ goes back to the router. With
--failed, failed recipients are opened again while their message is in the queue, unless
the sender has a report about them; --told includes those.`,
			flags: []cli.Flag{
				&cli.BoolFlag{Name: "failed", Usage: "open failed recipients again"},
				&cli.BoolFlag{Name: "told", Usage: "with --failed: include recipients that were reported to the sender"},
			},
		},
		{
			Verb: act.Flush, usage: "try all mail for a host now", hosts: true,
			text: `As zmctl retry, for each recipient of the hosts: HOST, or CHANNEL/HOST. Both may contain
* and ?.

    zmctl flush mx.example.com
    zmctl flush --yes 'smtp/*.example.com'`,
		},
		{
			Verb: act.Expire, usage: "fail recipients now and send a report",
			text: `Recipients, including held and frozen ones, fail as if they had expired, and the sender gets
a report with the last reply. With --silent no report is sent.`,
			example: "--silent --reason spam",
			flags:   []cli.Flag{&cli.BoolFlag{Name: "silent", Usage: "do not send a report"}},
		},
		{
			Verb: act.Remove, usage: "remove mail from the queue; zmctl undo restores it",
			text: `Removes open recipients. Deliveries that were made are not affected. When no recipient is
left, the scheduler moves message and specification to removed/, where they stay for REMOVEDKEEP.
A message in router/, deferred/, freezer/ or postman/ is moved to removed/ as it is. No report
is sent, unless --report is given and the message is routed.`,
			flags: []cli.Flag{&cli.BoolFlag{Name: "report", Usage: "report to the sender that the message was not delivered"}},
		},
		{
			Verb: act.Reroute, usage: "route recipients again, with the present tables",
			text: `A copy of the message with exactly these recipients goes to the router, with its present age;
the original has no more deliveries to them. Held and frozen recipients are included. The copy
has its own spool ID, which is printed. A message in deferred/ goes back to the router itself.`,
		},
	}
}

func verbCommands() []*cli.Command {
	var list []*cli.Command
	for _, v := range verbs() {
		list = append(list, v.command())
	}
	return list
}

func (v *verb) command() *cli.Command {
	flags := append(actFlags(), v.flags...)
	flags = append(flags, &cli.BoolFlag{Name: "all", Usage: "select everything that this command can change"})
	args, examples := "ID...", fmt.Sprintf("\n\n    zmctl %s S10117782A2CnLkQ0vB8C\n    zmctl %s --dry-run --host mx.example.com --older 1h\n    zmctl %s --yes %s--from @shop.example",
		v.Name, v.Name, v.Name, v.example+strings.Repeat(" ", min(1, len(v.example))))
	if v.hosts {
		args, examples = "HOST...", ""
	}
	undo := "It cannot be undone."
	switch {
	case v.Verb == act.Expire:
		undo = "A running scheduler sends the reports at once, and they cannot be undone; zmctl undo opens what is\nnot reported yet."
	case v.Undo != "":
		undo = "zmctl undo " + v.Undo + "."
	}
	return &cli.Command{
		Name: v.Name, Usage: v.usage,
		UsageText: fmt.Sprintf("zmctl %s [flags] %s\n   zmctl %s [flags] --from|--to|--host|... VALUE, or --where EXPRESSION, or --all", v.Name, args, v.Name),
		Description: v.text + examples + `

Messages named by their spool ID are changed at once. For a selector the command prints the
numbers and asks for confirmation; without a terminal, --yes is needed. Each use is written to
orders/ before anything is changed: see zmctl orders.
` + undo + `

Exit codes: 0 done, 1 some recipients were not changed, 75 delivery to some recipients is in
progress, 64 bad arguments, or --yes is missing.
` + selectorHelp,
		Flags:  append(flags, selectorFlags()...),
		Action: func(c *cli.Context) error { return v.run(c) },
	}
}

func (v *verb) run(c *cli.Context) error {
	sel, named, err := v.chosen(c)
	if err != nil {
		return err
	}
	if sel.Empty() {
		what := "a spool ID or a selector"
		if v.hosts {
			what = "a host or a selector"
		}
		return cli.Exit("zmctl "+v.Name+" needs "+what+"; --all selects everything, --help lists the flags, zmctl queue shows the mail", config.ExitUsage)
	}
	until, err := act.ParseUntil(c.String("until"), time.Now())
	if err != nil {
		return cli.Exit("zmctl "+v.Name+" --until "+err.Error(), config.ExitUsage)
	}
	a, err := newActing(c, v.Verb)
	if err != nil {
		return err
	}
	defer closeFS(a.po)
	a.r.Select, a.r.Named, a.r.Until = sel, named, until
	if c.Bool("dry-run") {
		return a.dry()
	}
	expected := 0
	if !named && !c.Bool("yes") {
		if expected, err = a.ask(); err != nil {
			return err
		}
	}
	if a.progress = newProgress(c, v.Name, expected); expected == 0 && !named {
		a.progress = newCounter(c, v.Name, "messages")
	}
	return a.do()
}

// chosen returns what the command line selects; named: messages by their IDs and nothing
// else.
func (v *verb) chosen(c *cli.Context) (sel selector.Selector, named bool, err error) {
	flags, err := flagged(c)
	if err != nil {
		return sel, false, err
	}
	if !v.hosts {
		sel, err = chosen(c)
		return sel, err == nil && flags.Empty() && c.NArg() > 0, err
	}
	var parts []string
	for _, arg := range c.Args().Slice() {
		channel, host, both := strings.Cut(arg, "/")
		if !both {
			channel, host = "*", arg
		}
		if strings.HasPrefix(arg, "-") {
			return sel, false, cli.Exit("zmctl flush: flags like "+arg+" go before the hosts", config.ExitUsage)
		}
		parts = append(parts, fmt.Sprintf("(channel %s and host %s)", selector.Quote(channel), selector.Quote(host)))
	}
	if len(parts) > 0 {
		if sel, err = selector.Parse(strings.Join(parts, " or ")); err != nil {
			return sel, false, cli.Exit(fmt.Errorf("zmctl flush: %w", err), config.ExitUsage)
		}
	}
	return sel.And(flags), false, nil
}
