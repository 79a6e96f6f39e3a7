package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"

	"github.com/urfave/cli/v2"

	"zmailer/internal/admin/service"
	"zmailer/internal/run/config"
)

func routeCommand() *cli.Command {
	return &cli.Command{
		Name:      "route",
		Usage:     "tell where addresses, a message, or all queued mail would be routed",
		UsageText: "zmctl route [--from ADDRESS] [--message FILE] [--all | --json] [ADDRESS...]\n   zmctl route --queue [--config DIR] [--json] [ID...] [flags]",
		Description: `Prints each step that the router takes for an address: which table was asked, file and
line, the key that fitted and what came of it; then channel, host, user and privilege, and
which clause of scheduler.conf serves that. It is the router's own program that tells it,
and nothing is changed.

    zmctl route sales@example.com
    zmctl route --message /var/spool/postoffice/queue/10117782-4711
    zmctl route --from boss@far.example --message draft.eml bob@example.com

Without --from an address is routed as if you had submitted the mail, and a message as if
the owner of its file had; with it, as mail from outside.

With --queue it routes all queued mail once more, in play: each open recipient by the
configuration in DIR (zmailer.conf and the tables beside it), beside where it goes now. The
differences are printed in groups, the worst first. Daemons may run meanwhile. Mail that is
queued stays where it goes, also when the configuration changes: zmctl reroute gives it to
the router again.

    zmctl route --queue --config /etc/zmailer.new
    zmctl route --queue --config /etc/zmailer.new --host mx.example.com --older 1h

Without --config the present configuration is taken: what would go elsewhere if it came
now.
` + selectorHelp + `

Exit codes: 0 every recipient is delivered to, 1 some are rejected, frozen, or not served,
75 a lookup cannot be made now. With --queue: 0 no differences, 1 the configuration in DIR
makes differences, 2 something could not be read or compared. 64 bad arguments, 71 a
program is missing, 78 a configuration that cannot be used.`,
		Flags:  routeFlags(),
		Action: runRoute,
	}
}

// routeFlags are those of the selector and our own. --from is both.
func routeFlags() []cli.Flag {
	flags := selectorFlags()
	for _, f := range flags {
		if g, ok := f.(*cli.GenericFlag); ok && g.Name == "from" {
			g.Usage = "the message has the sender `ADDRESS` and came from outside; with --queue: GLOB"
		}
	}
	return append(flags,
		&cli.StringFlag{Name: "message", Usage: "it is the message in `FILE`, with envelope lines or without; - for standard input"},
		&cli.BoolFlag{Name: "queue", Usage: "compare where queued mail goes with where it would be routed"},
		&cli.StringFlag{Name: "config", Usage: "with --queue: the configuration to be compared, `DIR` or its zmailer.conf"},
		&cli.BoolFlag{Name: "json", Usage: "print JSON (docs/route.md)"},
		&cli.BoolFlag{Name: "all", Usage: "print everything of large lists; with --queue: every group"},
	)
}

func runRoute(c *cli.Context) error {
	if c.Bool("queue") {
		return runRouteQueue(c)
	}
	refuse := func(text string) error { return cli.Exit("zmctl route: "+text, config.ExitUsage) }
	for _, f := range selectorFlags() {
		if name := f.Names()[0]; name != "from" && c.IsSet(name) {
			return refuse("--" + name + " goes with --queue")
		}
	}
	if c.IsSet("config") {
		return refuse("--config behind the command goes with --queue; in front of it, it names the configuration")
	}
	settings, err := config.FromCLI(outer(c))
	if err != nil {
		return err
	}
	args := []string{"--route"}
	if w, ok := c.Generic("from").(*words); ok && len(w.list) > 0 {
		args = append(args, "--from="+w.list[len(w.list)-1])
	}
	if name := c.String("message"); name != "" {
		args = append(args, "--message="+name)
	} else if c.NArg() == 0 {
		return refuse("name addresses, a message with --message, or say --queue")
	}
	for _, name := range []string{"json", "all"} {
		if c.Bool(name) {
			args = append(args, "--"+name)
		}
	}
	path, err := service.Program("router")
	if err != nil {
		return cli.Exit(err, config.ExitOSErr)
	}
	cmd := exec.CommandContext(c.Context, path, append(append(args, "--"), c.Args().Slice()...)...)
	cmd.Env = service.Environment(settings)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, c.App.Writer, c.App.ErrWriter
	err = cmd.Run()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return cli.Exit("", max(exit.ExitCode(), 1)) // it has said why
	}
	if err != nil {
		return fmt.Errorf("run %s: %w", path, err)
	}
	return nil
}

// outer is the context of zmctl's own flags, of which --config is one.
func outer(c *cli.Context) *cli.Context {
	lineage := c.Lineage()
	return lineage[min(1, len(lineage)-1)]
}
