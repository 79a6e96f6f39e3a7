package main

import (
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/urfave/cli/v2"

	"zmailer/internal/admin/view"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/config"
	"zmailer/internal/run/human"
	"zmailer/internal/ui/term"
)

const asideArguments = "[NAME...|ID...|CAUSE...|all]"

func freezerCommand() *cli.Command {
	return &cli.Command{
		Name:      "freezer",
		Usage:     "look at mail that a policy or a person has frozen, thaw or discard it",
		UsageText: "zmctl freezer list|show|thaw|discard [flags] " + asideArguments,
		Description: `Mail in freezer/ was accepted and is not routed until a person decides. NAME is a file's
name there, like 10117782.policy; ID is a spool ID; CAUSE is what stands behind the dot,
and may have * and ?; flags select by sender, recipient, age and size.

    zmctl freezer list
    zmctl freezer show 10117782.flood
    zmctl freezer thaw --dry-run 'flood*'
    zmctl freezer discard --from @spam.example flood

Recipients that are frozen in the queue are another matter: zmctl freeze, zmctl thaw.`,
		Subcommands: []*cli.Command{
			listCommand(postoffice.Freezer), showAsideCommand(postoffice.Freezer), {
				Name: "thaw", Usage: "give frozen messages to the router", UsageText: "zmctl freezer thaw [flags] " + asideArguments,
				Description: `Gives messages in freezer/ to the router. One that a policy has frozen is not frozen by it
again. Messages keep their time; see zmctl resubmit for --pace. For messages that are
named it is done at once; else it asks first.

Exit codes: 0 done, 1 some were not, 64 there is no such message, or --yes is missing, 75
it stopped because they come back.
` + selectorHelp,
				Flags:  append(actFlags(paceFlag()), selectorFlags()...),
				Action: func(c *cli.Context) error { return runAside(c, postoffice.Freezer, thawAsideVerb()) },
			}, discardCommand(postoffice.Freezer, `Moves messages from freezer/ to removed/, where they stay for REMOVEDKEEP; zmctl undo puts
them back. Nobody is told. For messages that are named it is done at once; else it asks
first.`),
		},
		Action: needsVerb,
	}
}

// needsVerb is what a command with subcommands does without one.
func needsVerb(c *cli.Context) error {
	if c.NArg() > 0 {
		return cli.Exit(fmt.Sprintf("zmctl %s has no %s; --help tells what it has", c.Command.Name, c.Args().First()), config.ExitUsage)
	}
	return cli.ShowSubcommandHelp(c)
}

func paceFlag() cli.Flag {
	return &cli.IntFlag{Name: "pace", Value: defaultPace, Usage: "at most `N` at a time before a running router; 0: all at once"}
}

// actFlags are those of every act on what is put aside.
func actFlags(more ...cli.Flag) []cli.Flag {
	return append([]cli.Flag{
		&cli.BoolFlag{Name: "dry-run", Aliases: []string{"n"}, Usage: "say which it would be about, and change nothing"},
		&cli.BoolFlag{Name: "yes", Aliases: []string{"y"}, Usage: "do not ask"},
		&cli.BoolFlag{Name: "quiet", Aliases: []string{"q"}, Usage: "print the sum alone"},
		&cli.BoolFlag{Name: "json", Usage: "print an object for each message"},
		reasonFlag(),
	}, more...)
}

func thawAsideVerb() *verb {
	return &verb{name: "thaw", done: "given to the router", asks: true,
		aside: map[string]func(*act, *view.Message) (string, error){view.StateFrozen: (*act).giveBack}}
}

// discardVerb puts what is put aside away for good, after a while.
func discardVerb() *verb {
	return &verb{name: "discard", done: "discarded", undo: "puts it back", asks: true,
		aside: map[string]func(*act, *view.Message) (string, error){
			view.StateFrozen: (*act).putAway, view.StateCopy: (*act).putAway, view.StateSetAside: (*act).discardOnly,
		}}
}

func discardCommand(dir, text string, flags ...cli.Flag) *cli.Command {
	return &cli.Command{
		Name: "discard", Usage: "throw messages away; zmctl undo brings them back for a while", UsageText: "zmctl " + dir + " discard [flags] " + asideArguments,
		Description: text + `

Exit codes: 0 done, 1 some were not, 64 there is no such message, or --yes is missing.
` + selectorHelp,
		Flags:  append(actFlags(flags...), selectorFlags()...),
		Action: func(c *cli.Context) error { return runAside(c, dir, discardVerb()) },
	}
}

// runAside acts on what is named in a directory.
func runAside(c *cli.Context, dir string, v *verb) error {
	from, err := newAside(c, dir)
	if err != nil {
		return err
	}
	if from.empty() {
		return cli.Exit(fmt.Sprintf("zmctl %s %s needs a name, a spool ID, a cause or a selector; all is everything, zmctl %s list shows them", dir, c.Command.Name, dir), config.ExitUsage)
	}
	if dir == postoffice.Postman {
		only := view.StateSetAside
		if v.name == "discard" {
			only = view.StateCopy
		}
		from.fits = func(k view.Kind, explicit bool) bool { return k.State == only || explicit }
	}
	return actAside(c, v, from)
}

func listCommand(dir string) *cli.Command {
	return &cli.Command{
		Name: "list", Usage: "list the messages in " + dir + "/, the oldest first", UsageText: "zmctl " + dir + " list [flags] " + asideArguments,
		Description: `Lists what is there, or what is named, with the reason. With --json an object a line.
` + selectorHelp,
		Flags: append([]cli.Flag{&cli.BoolFlag{Name: "json", Usage: "print an object for each message"}}, selectorFlags()...),
		Action: func(c *cli.Context) error {
			from, err := newAside(c, dir)
			if err != nil {
				return err
			}
			return listAside(c, from)
		},
	}
}

// listAside lists what is meant in a directory; without arguments all of it.
func listAside(c *cli.Context, from *aside) error {
	po, _, err := open(c)
	if err != nil {
		return err
	}
	defer closeFS(po)
	now := time.Now()
	if _, err := from.find(c.Context, view.New(po, now)); err != nil {
		return err
	}
	if err := from.missing(c.Command.Name); err != nil {
		return err
	}
	out := newStream(c.App.Writer)
	n := 0
	err = from.each(c.Context, po, func(m *view.Message) error {
		n++
		if c.Bool("json") {
			return errors.Join(jsonLines(out).Encode(m), out.tick())
		}
		_, err := io.WriteString(out, term.For(out).Bold(m.File.Name)+"  ")
		return errors.Join(err, printMessage(out, m, now), out.tick())
	})
	if !c.Bool("json") {
		text := human.Count(n, "message")
		if n == 0 && len(from.list) == 0 && from.empty() {
			text = from.dir + "/ is empty"
		}
		fmt.Fprintln(out, text)
	}
	return quiet(errors.Join(err, out.flush()))
}

func showAsideCommand(dir string) *cli.Command {
	return &cli.Command{
		Name: "show", Usage: "tell everything about messages in " + dir + "/", UsageText: "zmctl " + dir + " show [flags] NAME...|ID...|CAUSE...|all",
		Description: `As zmctl show: files, every reason in full, envelope, and what happens next.
` + selectorHelp,
		Flags: append([]cli.Flag{&cli.BoolFlag{Name: "json", Usage: "print an object for each message"}}, selectorFlags()...),
		Action: func(c *cli.Context) error {
			from, err := newAside(c, dir)
			if err != nil {
				return err
			}
			if from.empty() {
				return cli.Exit(fmt.Sprintf("zmctl %s show needs a name, a spool ID, a cause or a selector; all is everything", dir), config.ExitUsage)
			}
			return showAside(c, from)
		},
	}
}

func showAside(c *cli.Context, from *aside) error {
	po, _, err := open(c)
	if err != nil {
		return err
	}
	defer closeFS(po)
	s := view.New(po, time.Now())
	if _, err := from.find(c.Context, s); err != nil {
		return err
	}
	if err := from.missing("show"); err != nil {
		return err
	}
	out := newStream(c.App.Writer)
	n := 0
	err = from.each(c.Context, po, func(m *view.Message) error {
		n++
		if c.Bool("json") {
			return errors.Join(jsonLines(out).Encode(s.Everything(m)), out.tick())
		}
		if n > 1 {
			fmt.Fprintln(out)
		}
		showMessage(out, s, m)
		return out.tick()
	})
	if n == 0 && err == nil && !c.Bool("json") {
		fmt.Fprintln(out, "nothing in "+from.dir+"/ matches")
	}
	return quiet(errors.Join(err, out.flush()))
}
