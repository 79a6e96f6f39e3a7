package main

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"zmailer/internal/admin/selector"
	"zmailer/internal/admin/view"
	"zmailer/internal/postoffice"
	"zmailer/internal/postoffice/ledger"
	"zmailer/internal/postoffice/operations"
	"zmailer/internal/run/config"
	"zmailer/internal/workspec"
)

// verb is something that a person does with queued mail.
type verb struct {
	name, done  string // "hold", "held"
	usage, text string
	example     string // flags of an example, beside those of a selector
	flags       []cli.Flag
	// undo is what zmctl undo does then; "": it cannot be undone.
	undo string
	// hosts: the arguments are hosts and not spool IDs.
	hosts bool
	// takes tells recipients of a routed message that it can be about.
	takes func(a *act, r *view.Recipient) bool
	do    func(a *act, q operations.Request, name string) (operations.Result, error)
	// aside is what it does with a message that is not routed, by its state; it gives
	// what to print.
	aside map[string]func(a *act, m *view.Message) (string, error)
	// asks: of one about a directory alone, whether it asks first.
	asks bool
	// instead helps who names a message that is not routed.
	instead string
}

func reasonFlag() cli.Flag {
	return &cli.StringFlag{Name: "reason", Usage: "`TEXT` that is kept in each message's history"}
}

// verbs are all of them, in the order of the help text.
func verbs() []*verb {
	open := func(_ *act, r *view.Recipient) bool { return r.Open() }
	return []*verb{
		{
			name: "hold", done: "held", usage: "have recipients wait until they are released", undo: "releases them",
			text: `Held recipients are not tried until zmctl release, or --until. The time does not make them
older: a report about delay or expiry comes that much later.`,
			example: "--until 2h --reason 'their disk is full'",
			flags:   []cli.Flag{&cli.StringFlag{Name: "until", Usage: "end of the hold: `WHEN` like 2h, 3d or 2026-11-22T06:00"}},
			takes:   open,
			do: func(a *act, q operations.Request, name string) (operations.Result, error) {
				return operations.Hold(q, name, a.until)
			},
			instead: "zmctl freeze puts it away",
		},
		{
			name: "release", done: "released", usage: "end a hold", undo: "holds again what is not delivered by then",
			text:  `What was due meanwhile is tried at once.`,
			takes: func(_ *act, r *view.Recipient) bool { return r.State == view.Held },
			do: func(_ *act, q operations.Request, name string) (operations.Result, error) {
				return operations.Release(q, name)
			},
			instead: "only queued mail can be held",
		},
		{
			name: "freeze", done: "frozen", usage: "have recipients wait for a person; they do not expire", undo: "thaws them",
			text: `Frozen recipients are not tried and do not expire until zmctl thaw. A message in router/
or deferred/ goes to freezer/.`,
			takes: func(_ *act, r *view.Recipient) bool { return r.Open() && r.State != view.Frozen },
			do: func(_ *act, q operations.Request, name string) (operations.Result, error) {
				return operations.Freeze(q, name, workspec.CausePerson)
			},
			aside: map[string]func(*act, *view.Message) (string, error){view.StateAccepted: (*act).park, view.StateDeferred: (*act).park},
		},
		{
			name: "thaw", done: "thawed", usage: "have frozen recipients tried again", undo: "freezes again what is not delivered by then",
			text: `Their time begins anew: they are due now, their attempts count from one, and they expire
after their clause's expiry from now. A message in freezer/ goes back to the router.`,
			takes: func(_ *act, r *view.Recipient) bool { return r.State == view.Frozen },
			do: func(_ *act, q operations.Request, name string) (operations.Result, error) {
				return operations.Thaw(q, name)
			},
			aside:   map[string]func(*act, *view.Message) (string, error){view.StateFrozen: (*act).recall},
			instead: "it is not frozen",
		},
		{
			name: "retry", done: "due now", usage: "try waiting recipients now",
			text: `Does not wait for the next attempt's time, and forgets that the host was in trouble. Held
and frozen recipients are left. A message in deferred/ goes back to the router. With
--failed, recipients that have failed are opened again while their message is in the
queue, unless the sender was told; with --told those, too.`,
			flags: []cli.Flag{
				&cli.BoolFlag{Name: "failed", Usage: "open recipients again that have failed"},
				&cli.BoolFlag{Name: "told", Usage: "and those whose sender has a report"},
			},
			takes: takesRetry, do: doRetry,
			aside:   map[string]func(*act, *view.Message) (string, error){view.StateDeferred: (*act).recall},
			instead: "the router has it next; zmctl thaw is for what is frozen",
		},
		{
			name: "flush", done: "due now", usage: "try everything that waits for a host now", hosts: true,
			text: `As zmctl retry, for each recipient of the hosts named: HOST, or CHANNEL/HOST. They may
have * and ?.

    zmctl flush mx.example.com
    zmctl flush --yes 'smtp/*.example.com'`,
			takes: takesRetry, do: doRetry,
		},
		{
			name: "expire", done: "given up", usage: "give recipients up now and tell the sender", undo: "opens them again while no report has gone out",
			text: `They fail as if their time were over, held and frozen ones, too, and the sender gets a
report with the last answer. With --silent nobody is told.`,
			example: "--silent --reason spam",
			flags:   []cli.Flag{&cli.BoolFlag{Name: "silent", Usage: "do not tell the sender"}},
			takes:   open,
			do: func(_ *act, q operations.Request, name string) (operations.Result, error) {
				return operations.Expire(q, name)
			},
			instead: "zmctl remove takes it out; a report can be made only of a message that is routed",
		},
		{
			name: "remove", done: "removed", usage: "take mail out of the queue; zmctl undo puts it back", undo: "puts it back",
			text: `Takes open recipients out. What was delivered stays delivered. When no recipient is left
the scheduler moves message and specification to removed/, where they stay for REMOVEDKEEP. A
message in router/, deferred/, freezer/ or postman/ goes to removed/ as it is. The sender
is not told, unless --report is given and the message is routed.`,
			flags: []cli.Flag{&cli.BoolFlag{Name: "report", Usage: "tell the sender that the message was not delivered"}},
			takes: open,
			do: func(_ *act, q operations.Request, name string) (operations.Result, error) {
				return operations.Remove(q, name)
			},
			aside: map[string]func(*act, *view.Message) (string, error){
				view.StateAccepted: (*act).putAway, view.StateDeferred: (*act).putAway, view.StateFrozen: (*act).putAway,
				view.StateSetAside: (*act).putAway, view.StateCopy: (*act).putAway,
			},
		},
		{
			name: "reroute", done: "routed again", usage: "route recipients again, as the tables are now",
			text: `A copy of the message with exactly these recipients goes to the router, with the age that
it has; here they are done with, held and frozen ones, too. It gets a spool ID of its own,
which is told. A message in deferred/ goes back to the router itself.`,
			takes: open,
			do: func(a *act, q operations.Request, name string) (operations.Result, error) {
				journal := ledger.New(a.po, ledger.Config{Role: "zmctl"})
				defer journal.Close()
				q.Submit = func(file string, n int) (postoffice.Accepted, error) { return journal.SubmitPrepared(a.po, file, n) }
				return operations.Reroute(q, name)
			},
			aside: map[string]func(*act, *view.Message) (string, error){view.StateDeferred: (*act).recall},
		},
	}
}

func takesRetry(a *act, r *view.Recipient) bool {
	if r.State == view.Failed {
		return a.c.Bool("failed") && (a.c.Bool("told") || !r.Reported)
	}
	return r.Open() && r.State != view.Held && r.State != view.Frozen
}

func doRetry(a *act, q operations.Request, name string) (operations.Result, error) {
	q.Failed, q.Told = a.c.Bool("failed"), a.c.Bool("told")
	return operations.Retry(q, name)
}

func verbCommands() []*cli.Command {
	var list []*cli.Command
	for _, v := range verbs() {
		list = append(list, v.command())
	}
	return list
}

func (v *verb) command() *cli.Command {
	flags := append([]cli.Flag{
		&cli.BoolFlag{Name: "dry-run", Aliases: []string{"n"}, Usage: "say what it would be about, and change nothing"},
		&cli.BoolFlag{Name: "yes", Aliases: []string{"y"}, Usage: "do not ask"},
		&cli.BoolFlag{Name: "quiet", Aliases: []string{"q"}, Usage: "print the sum alone"},
		&cli.BoolFlag{Name: "json", Usage: "print an object for each message"},
		reasonFlag(),
	}, v.flags...)
	flags = append(flags, &cli.BoolFlag{Name: "all", Usage: "everything that it can be about"})
	args, examples := "ID...", ""
	switch {
	case v.hosts:
		args = "HOST..."
	default:
		examples = fmt.Sprintf("\n\n    zmctl %s S10117782A2CnLkQ0vB8C\n    zmctl %s --dry-run --host mx.example.com --older 1h\n    zmctl %s --yes %s--from @shop.example",
			v.name, v.name, v.name, v.example+strings.Repeat(" ", min(1, len(v.example))))
	}
	undo := "It cannot be undone."
	if v.undo != "" {
		undo = "zmctl undo " + v.undo + "."
	}
	return &cli.Command{
		Name: v.name, Usage: v.usage,
		UsageText: fmt.Sprintf("zmctl %s [flags] %s\n   zmctl %s [flags] --from|--to|--host|... VALUE, or --where EXPRESSION, or --all", v.name, args, v.name),
		Description: v.text + examples + `

For messages that are named by their spool ID it is done at once. For what a selector
finds it asks first, with the numbers; where nobody can be asked, --yes is needed. Each use
is written to orders/ before anything is done: see zmctl orders.
` + undo + `

Exit codes: 0 done, 1 something was not done, 75 some recipients are being delivered to at
this moment, 64 bad arguments, or --yes is missing.
` + selectorHelp,
		Flags:  append(flags, selectorFlags()...),
		Action: func(c *cli.Context) error { return v.run(c) },
	}
}

// chosen is what the command line selects, and whether that are named messages alone.
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
			return sel, false, cli.Exit("zmctl flush: flags like "+arg+" stand before the hosts", config.ExitUsage)
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

// park puts a message that is not routed into freezer/.
func (a *act) park(m *view.Message) (string, error) {
	if m.File.Dir == postoffice.Public {
		return "", fmt.Errorf("%s %s: it is on its way to router/: %w", a.v.name, a.id(m), errAgain)
	}
	name, err := a.po.Aside.Freeze(m.File.Dir, m.File.Name, m.SpoolID, workspec.CausePerson)
	if err == nil {
		a.explain(postoffice.Freezer, postoffice.WasFrozen, m)
	}
	return "is freezer/" + name + " now", err
}

// recall gives a message that is put aside back to the router.
func (a *act) recall(m *view.Message) (string, error) {
	a.explain(m.File.Dir, "", m)
	to, err := a.po.Aside.Recall(m.File.Dir, m.File.Name, m.SpoolID)
	return m.File.Path() + " is " + to.Name + " now", err
}

// putAway moves a message that is not routed to removed/.
func (a *act) putAway(m *view.Message) (string, error) {
	if m.File.Dir == postoffice.Public {
		return "", fmt.Errorf("remove %s: it is on its way to router/: %w", m.ID, errAgain)
	}
	if a.c.Bool("report") {
		return "", fmt.Errorf("remove %s: a report can be made only of a message that is routed; without --report it is removed", m.ID)
	}
	if m.State != view.StateCopy {
		if a.journal == nil {
			a.journal = ledger.New(a.po, ledger.Config{Role: "zmctl"})
		}
		// Crash: the next line of whoever has the message says that it is there.
		a.journal.Gone(m.SpoolID, len(m.Recipients), ledger.ByPerson)
	}
	err := a.po.Removed.PutAway(m.File.Dir, m.File.Name, m.SpoolID)
	if a.away == nil {
		a.away = map[string]bool{}
	}
	a.away[m.File.Dir] = true
	return "removed from " + m.File.Dir + "/", err
}

// parseUntil reads the end of a hold: a time from now, or a date.
func parseUntil(s string, now time.Time) (time.Time, error) {
	if s == "" {
		return time.Time{}, nil
	}
	if d, err := selector.Time(s); err == nil {
		return now.Add(d), nil
	}
	for _, layout := range []string{time.RFC3339, "2006-01-02T15:04:05", "2006-01-02 15:04:05", "2006-01-02T15:04", "2006-01-02 15:04", "2006-01-02"} {
		if t, err := time.ParseInLocation(layout, s, time.Local); err == nil {
			if !t.After(now) {
				return t, errors.New("--until " + s + " is over")
			}
			return t, nil
		}
	}
	return time.Time{}, errors.New("--until " + s + ": write it like 2h, 3d or 2026-11-22T06:00")
}
