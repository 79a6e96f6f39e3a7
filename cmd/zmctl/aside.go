package main

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"zmailer/internal/admin/act"
	"zmailer/internal/admin/view"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/config"
	"zmailer/internal/run/human"
	"zmailer/internal/ui/term"
	"zmailer/internal/ui/text"
)

const asideArguments = "[--all|NAME...|ID...|CAUSE...]"

func freezerCommand() *cli.Command {
	const dir = postoffice.Freezer
	return &cli.Command{
		Name:      dir,
		Usage:     "list, show, thaw or discard mail that a policy or an operator has frozen",
		UsageText: "zmctl freezer list|show|thaw|discard [flags] " + asideArguments,
		Description: `Mail in freezer/ was accepted and is not routed until an operator decides. NAME is the name of
a file there, like 10117782.policy; ID is a spool ID; CAUSE is the part of the name after the
dot, and may contain * and ?; flags select by sender, recipient, age and size.

    zmctl freezer list
    zmctl freezer show 10117782.flood
    zmctl freezer thaw --dry-run 'flood*'
    zmctl freezer discard --from @spam.example flood

For recipients that are frozen in the queue, use zmctl freeze and zmctl thaw.`,
		Subcommands: []*cli.Command{
			listCommand(dir), showAsideCommand(dir), {
				Name: "thaw", Usage: "return frozen messages to the router", UsageText: "zmctl freezer thaw [flags] " + asideArguments,
				Description: `Returns messages in freezer/ to the router. A message that a policy has frozen is not frozen
by a policy again. Messages keep their age; see zmctl resubmit for --pace. Messages that are
named are moved at once; otherwise the command asks for confirmation.

Exit codes: 0 done, 1 some messages failed, 64 no such message, or --yes is missing, 75
stopped because messages come back.
` + selectorHelp,
				Flags:  append(actFlags(paceFlag(), allFlag()), selectorFlags()...),
				Action: func(c *cli.Context) error { return runAside(c, dir, act.ThawAside, true) },
			}, discardCommand(dir, `Moves messages from freezer/ to removed/, where they stay for REMOVEDKEEP; zmctl undo puts
them back. No report is sent. Messages that are named are moved at once; otherwise the command
asks for confirmation.`),
		},
		Action: needsVerb,
	}
}

func postmanCommand() *cli.Command {
	const dir = postoffice.Postman
	return &cli.Command{
		Name:      dir,
		Usage:     "list, show, resubmit or discard the postmaster's mail: copies, and mail that cannot be routed",
		UsageText: "zmctl postman list|show|resubmit|discard [flags] " + asideArguments,
		Description: `A name with an underscore, like 10117782_header, is a copy: the message itself went on, and
the copy is deleted after POSTMANKEEP. A name that is only a number is the only copy of an
accepted message that cannot be routed; only an operator removes it. NAME is the name of a
file, ID a spool ID, CAUSE the part of the name after the underscore, with * and ?.

    zmctl postman list
    zmctl postman show 10117782
    zmctl postman discard header
    vi /var/spool/postoffice/postman/10117782 && zmctl postman resubmit 10117782`,
		Subcommands: []*cli.Command{
			listCommand(dir), showAsideCommand(dir), {
				Name: "resubmit", Usage: "return corrected only copies to the router", UsageText: "zmctl postman resubmit [flags] " + asideArguments,
				Description: `Returns the only copies of messages to the router; correct the envelope with an editor first. A
message that still cannot be routed is refused with the reason. Copies of messages that went on
are refused: they would be delivered twice.

If the first line of the file is "comment octets", remove that line after you changed the file:
it has the old length. A changed file has another spool ID.

Exit codes: 0 done, 1 some messages failed, 64 no such message.
` + selectorHelp,
				Flags:  append(actFlags(paceFlag(), allFlag()), selectorFlags()...),
				Action: func(c *cli.Context) error { return runAside(c, dir, act.GiveMended, false) },
			}, discardCommand(dir, `Moves copies from postman/ to removed/, where they stay for REMOVEDKEEP; zmctl undo puts
them back. An only copy is skipped, unless you name it by its spool ID with --force; it is then
printed.`,
				&cli.BoolFlag{Name: "force", Usage: "discard also an only copy that is named by its spool ID"}),
		},
		Action: needsVerb,
	}
}

// needsVerb is the action of a command with subcommands.
func needsVerb(c *cli.Context) error {
	if c.NArg() > 0 {
		return cli.Exit(fmt.Sprintf("zmctl %s: unknown command %s; see --help", c.Command.Name, c.Args().First()), config.ExitUsage)
	}
	return cli.ShowSubcommandHelp(c)
}

func paceFlag() cli.Flag {
	return &cli.IntFlag{Name: "pace", Value: act.DefaultPace, Usage: "keep at most `N` messages waiting for a running router; 0: no limit"}
}

// actFlags returns those of every command that changes mail.
func actFlags(more ...cli.Flag) []cli.Flag {
	return append([]cli.Flag{
		&cli.BoolFlag{Name: "dry-run", Aliases: []string{"n"}, Usage: "print what would be changed, and change nothing"},
		&cli.BoolFlag{Name: "yes", Aliases: []string{"y"}, Usage: "do not ask for confirmation"},
		&cli.BoolFlag{Name: "quiet", Aliases: []string{"q"}, Usage: "print the totals only"},
		&cli.BoolFlag{Name: "json", Usage: "print an object for each message"},
		reasonFlag(),
	}, more...)
}

// allFlag selects every message. The argument "all" does, too, as in earlier versions.
func allFlag() cli.Flag { return &cli.BoolFlag{Name: "all", Usage: "select every message there"} }

func discardCommand(dir, text string, flags ...cli.Flag) *cli.Command {
	return &cli.Command{
		Name: "discard", Usage: "discard messages; zmctl undo puts them back until REMOVEDKEEP", UsageText: "zmctl " + dir + " discard [flags] " + asideArguments,
		Description: text + `

Exit codes: 0 done, 1 some messages failed, 64 no such message, or --yes is missing.
` + selectorHelp,
		Flags:  append(actFlags(append(flags, allFlag())...), selectorFlags()...),
		Action: func(c *cli.Context) error { return runAside(c, dir, act.Discard, true) },
	}
}

// newAside reads the arguments and flags of a command about one directory.
func newAside(c *cli.Context, dir string) (*act.Aside, error) {
	sel, err := flagged(c)
	if err != nil {
		return nil, err
	}
	for _, arg := range c.Args().Slice() {
		if strings.HasPrefix(arg, "-") {
			return nil, cli.Exit("zmctl "+c.Command.FullName()+": flags like "+arg+" go before the names", config.ExitUsage)
		}
	}
	a, err := act.NewAside(dir, c.Args().Slice(), sel)
	if err != nil {
		return nil, cli.Exit(fmt.Errorf("zmctl %s %w", c.Command.FullName(), err), config.ExitUsage)
	}
	return a, nil
}

// runAside executes a verb on the named messages of a directory.
func runAside(c *cli.Context, dir string, v *act.Verb, asks bool) error {
	from, err := newAside(c, dir)
	if err != nil {
		return err
	}
	if from.Empty() {
		return cli.Exit(fmt.Sprintf("zmctl %s %s needs a name, a spool ID, a cause or a selector; --all selects every message; zmctl %s list shows them", dir, c.Command.Name, dir), config.ExitUsage)
	}
	if dir == postoffice.Postman {
		only := view.StateSetAside
		if v == act.Discard {
			only = view.StateCopy
		}
		from.Only = func(k view.Kind, explicit bool) bool { return k.State == only || explicit }
	}
	return actAside(c, v, from, asks)
}

func listCommand(dir string) *cli.Command {
	return &cli.Command{
		Name: "list", Usage: "list the messages in " + dir + "/, the oldest first", UsageText: "zmctl " + dir + " list [flags] " + asideArguments,
		Description: `Lists all messages there, or those that you name, with the reason. --json prints one object
per line.
` + selectorHelp,
		Flags: append([]cli.Flag{&cli.BoolFlag{Name: "json", Usage: "print an object for each message"}, allFlag()}, selectorFlags()...),
		Action: func(c *cli.Context) error {
			from, err := newAside(c, dir)
			if err != nil {
				return err
			}
			_, err = listAside(c, from)
			return err
		},
	}
}

// listAside lists the selected messages of a directory; without arguments all of them.
func listAside(c *cli.Context, from *act.Aside) (n int, err error) {
	now := time.Now()
	err = eachAside(c, from, c.Command.Name, func(out *text.Stream, s *view.Spool, m *view.Message) error {
		n++
		if c.Bool("json") {
			return text.JSONLines(out).Encode(m)
		}
		_, err := io.WriteString(out, term.For(out).Bold(m.File.Name)+"  ")
		return errors.Join(err, text.PrintMessage(out, m, now))
	})
	if err == nil && !c.Bool("json") {
		text := human.Count(n, "message")
		if n == 0 && from.Empty() {
			text = from.Dir() + "/ is empty"
		}
		_, err = fmt.Fprintln(c.App.Writer, text)
	}
	return n, text.Quiet(err)
}

func showAsideCommand(dir string) *cli.Command {
	return &cli.Command{
		Name: "show", Usage: "show everything about messages in " + dir + "/", UsageText: "zmctl " + dir + " show [flags] --all|NAME...|ID...|CAUSE...",
		Description: `As zmctl show: files, every reason in full, envelope, and what happens next.
` + selectorHelp,
		Flags: append([]cli.Flag{&cli.BoolFlag{Name: "json", Usage: "print an object for each message"}, allFlag()}, selectorFlags()...),
		Action: func(c *cli.Context) error {
			from, err := newAside(c, dir)
			if err != nil {
				return err
			}
			if from.Empty() {
				return cli.Exit(fmt.Sprintf("zmctl %s show needs a name, a spool ID, a cause or a selector; --all selects every message", dir), config.ExitUsage)
			}
			return showAside(c, from)
		},
	}
}

func showAside(c *cli.Context, from *act.Aside) error {
	n := 0
	err := eachAside(c, from, "show", func(out *text.Stream, s *view.Spool, m *view.Message) error {
		n++
		x := view.NewExplainer(s, nil)
		if c.Bool("json") {
			return text.JSONLines(out).Encode(x.Everything(m))
		}
		if n > 1 {
			fmt.Fprintln(out)
		}
		text.ShowMessage(out, x, m)
		return nil
	})
	if n == 0 && err == nil && !c.Bool("json") {
		fmt.Fprintln(c.App.Writer, "nothing in "+from.Dir()+"/ matches")
	}
	return err
}

// eachAside prints every message that is selected in a directory.
func eachAside(c *cli.Context, from *act.Aside, verb string, print func(out *text.Stream, s *view.Spool, m *view.Message) error) error {
	po, _, err := open(c)
	if err != nil {
		return err
	}
	defer closeFS(po)
	s := view.New(po, time.Now())
	if _, err := from.Find(c.Context, s); err != nil {
		return err
	}
	if err := asUsage(from.Missing(verb)); err != nil {
		return err
	}
	out := text.NewStream(c.App.Writer)
	err = from.Each(c.Context, po, func(m *view.Message) error {
		return errors.Join(print(out, s, m), out.Tick())
	})
	return text.Quiet(errors.Join(err, out.Flush()))
}
