// Command scheduler hands routed messages to transport agents until they are
// delivered or given up.
package main

import (
	"os"
	"slices"

	"github.com/urfave/cli/v2"

	"zmailer/internal/run/config"
	"zmailer/internal/run/logging"
	"zmailer/internal/run/machine"
	"zmailer/internal/run/sdnotify"
	"zmailer/internal/stage/scheduler"
	"zmailer/internal/stage/scheduler/engine"
)

const description = `Reads the work specifications in $POSTOFFICE/transport/, starts transport agents as
scheduler.conf says, tells them which message to deliver to which host, tries again
what was deferred, gives up what is too old, writes reports (RFC 3464) to senders, and
removes what is done. Agents are its child processes; they work in transport/.

    scheduler --config /etc/zmailer/zmailer.conf
    scheduler --config /etc/zmailer/zmailer.conf --check-config

It reads zmailer.conf (HOSTNAME, POSTMASTER, HASHLEVELS, SCHEDULERPOLL, REMOVEDKEEP,
METRICS, SYNC) and beside it scheduler.conf; without one a built-in one is used. Programs that
scheduler.conf names without a slash are looked for beside the scheduler, then in PATH.
It writes marks and lines into the work specifications, reports by way of
$POSTOFFICE/public/ to router/, and its log to standard error: one line for each
recipient's outcome.

When scheduler.conf changes, or at SIGHUP, it is read again; a bad one is refused, and the
old one stays. One scheduler serves a postoffice; a second one exits and names the first.
SIGTERM or SIGINT ends it in order: no new deliveries, running ones finish. What a killed
one left is taken up at the next start. Exit codes: 0 stopped by a signal, 1 another
scheduler runs or trouble with the disk, 64 bad flags, 78 bad configuration or no
postoffice.`

func main() {
	config.Main(&cli.App{
		Name:        "scheduler",
		Usage:       "hand routed messages to transport agents",
		UsageText:   "scheduler [-FHS] [-E N] [-p CHANNEL/HOST] [--check-config] [--strict] [--stop-timeout TIME] [flags]",
		Description: description,
		Flags: append(slices.Concat(config.Flags(), startFlags()),
			&cli.BoolFlag{Name: "check-config", Usage: "say what is wrong with scheduler.conf, and whether it can be used, and exit"},
			&cli.BoolFlag{Name: "strict", Usage: "do not start while unfinished files are in public/: list them and exit 78"},
			&cli.BoolFlag{Name: "start-agents", Usage: "start agents that run as others for a scheduler that is not root, and do nothing else (docs/privileges.md)"},
			&cli.DurationFlag{Name: "stop-timeout", Value: engine.DefaultStopTimeout, Usage: "when stopping, end agents that have not finished after `TIME`"},
		),
		UseShortOptionHandling: true,
		HideHelpCommand:        true,
		Action:                 run,
	})
}

func run(c *cli.Context) error {
	if c.NArg() > 0 {
		return cli.Exit("it takes no arguments; --help tells the flags", config.ExitUsage)
	}
	settings, err := config.FromCLI(c)
	if err != nil {
		return err
	}
	if c.Bool("start-agents") {
		return startAgents(c.Context, settings)
	}
	if c.Bool("check-config") {
		return checkConfig(settings, c.App.Writer, os.Stderr)
	}
	cfg, err := scheduler.ConfigFrom(settings)
	if err != nil {
		return err
	}
	if err := applyStart(c, &cfg); err != nil {
		return err
	}
	cfg.StrictStart, cfg.Reread.Ask = c.Bool("strict"), hangups()
	cfg.Log, err = logging.New(os.Stderr, settings.String("LOG", ""), settings.String("LOGLEVEL", ""), "scheduler")
	if err != nil {
		return cli.Exit(err, config.ExitConfig)
	}
	defer logging.Flush(cfg.Log)
	cfg.Service = sdnotify.FromEnvironment(cfg.Log)
	machine.Share()
	if err := enterRoom(settings, &cfg); err != nil {
		return err
	}
	return engine.Run(c.Context, cfg)
}
