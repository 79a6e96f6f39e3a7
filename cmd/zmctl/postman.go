package main

import (
	"fmt"

	"github.com/urfave/cli/v2"

	"zmailer/internal/admin/view"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/human"
)

func postmanCommand() *cli.Command {
	return &cli.Command{
		Name:      "postman",
		Usage:     "look at the postmaster's mail: copies, and only copies that cannot be routed",
		UsageText: "zmctl postman list|show|resubmit|discard [flags] " + asideArguments,
		Description: `A name with an underscore, like 10117782_header, is a copy: the message itself went on, and
the copy goes after POSTMANKEEP. A name that is a number alone is the only copy of an
accepted message that cannot be routed; nothing removes it but a person. NAME is a file's
name, ID a spool ID, CAUSE what stands behind the underscore, with * and ?.

    zmctl postman list
    zmctl postman show 10117782
    zmctl postman discard header
    vi /var/spool/postoffice/postman/10117782 && zmctl postman resubmit 10117782`,
		Subcommands: []*cli.Command{
			listCommand(postoffice.Postman), showAsideCommand(postoffice.Postman), {
				Name: "resubmit", Usage: "give only copies that were mended to the router", UsageText: "zmctl postman resubmit [flags] " + asideArguments,
				Description: `Gives the only copies of messages to the router: mend the envelope with an editor first. One
that still cannot be routed is refused, and told why. Copies of messages that went on are
refused: they would be delivered twice.

When the first line of the file is "comment octets" remove that line after you changed
the file: it says how long it was. A changed file has another spool ID.

Exit codes: 0 done, 1 some were not, 64 there is no such message.
` + selectorHelp,
				Flags: append(actFlags(paceFlag()), selectorFlags()...),
				Action: func(c *cli.Context) error {
					return runAside(c, postoffice.Postman, resubmitPostmanVerb())
				},
			}, discardCommand(postoffice.Postman, `Moves copies from postman/ to removed/, where they stay for REMOVEDKEEP; zmctl undo puts
them back. An only copy is left alone, unless it is named by its spool ID and --force is
given; it is shown then.`,
				&cli.BoolFlag{Name: "force", Usage: "also an only copy, if it is named by its spool ID"}),
		},
		Action: needsVerb,
	}
}

func resubmitPostmanVerb() *verb {
	return &verb{name: "resubmit", done: "given to the router",
		aside: map[string]func(*act, *view.Message) (string, error){view.StateSetAside: (*act).giveMended, view.StateCopy: (*act).refuseCopy}}
}

// giveMended gives an only copy to the router, if that can use it.
func (a *act) giveMended(m *view.Message) (string, error) {
	switch {
	case m.Unusable || m.Unreadable:
		return "", fmt.Errorf("%s %s: it still cannot be routed: %s; mend %s with an editor", a.v.name, m.File.Name, human.Clean(m.Problem), m.File.Path())
	case m.Octets > m.Size:
		return "", fmt.Errorf("%s %s: %s; remove that line if you have changed the file yourself", a.v.name, m.File.Name, human.Clean(m.Problem))
	}
	return a.giveBack(m)
}

// refuseCopy says why a copy is not given to the router.
func (a *act) refuseCopy(m *view.Message) (string, error) {
	return "", fmt.Errorf("%s %s: it is a copy for the postmaster, the message itself went on: it would be delivered twice", a.v.name, m.File.Name)
}

// discardOnly throws the only copy of a message away, if that is meant.
func (a *act) discardOnly(m *view.Message) (string, error) {
	named := false
	for _, w := range a.from.words {
		named = named || w.isID && w.id == m.SpoolID
	}
	if !named || !a.c.Bool("force") {
		return "", fmt.Errorf("%s %s: it is the only copy of a message that was accepted; look at it with zmctl postman show %s, then: zmctl postman discard --force %s",
			a.v.name, m.File.Name, m.File.Name, m.ID)
	}
	if !a.c.Bool("quiet") && !a.c.Bool("json") {
		if err := printMessage(a.out, m, a.now); err != nil {
			return "", err
		}
	}
	return a.putAway(m)
}
