// Command scheduler hands routed messages to transport agents until they are
// delivered or given up.
package main

import (
	"os"
	"slices"

	"github.com/urfave/cli/v2"

	"zmailer/internal/disk/lastgood"
	"zmailer/internal/run/config"
	"zmailer/internal/run/keys"
	"zmailer/internal/run/logging"
	"zmailer/internal/run/machine"
	"zmailer/internal/run/sdnotify"
	"zmailer/internal/stage/scheduler"
	"zmailer/internal/stage/scheduler/engine"
)

const description = `Reads the work specifications in $POSTOFFICE/transport/, starts the transport
agents that scheduler.conf defines, assigns messages and hosts to them, retries deferred
recipients, expires recipients that are too old, sends reports (RFC 3464) to senders, and
removes finished messages. Agents are its child processes; they work in transport/.

    scheduler --config /etc/zmailer/zmailer.conf
    scheduler --config /etc/zmailer/zmailer.conf --check-config

It reads zmailer.conf (HOSTNAME, POSTMASTER, HASHLEVELS, SCHEDULERPOLL, REMOVEDKEEP,
METRICS, SYNC) and beside it scheduler.conf; without that file it uses a built-in one.
Programs that scheduler.conf names without a slash are searched beside the scheduler, then
in PATH. It marks recipients and appends lines in the work specifications, submits reports
through $POSTOFFICE/public/ to router/, and logs to standard error, with one line for the
outcome of each recipient.

scheduler.conf is read again when it changes, and at SIGHUP, as zmailer.conf is then; agents
whose settings have changed are replaced when they have finished their deliveries. A file with
errors is refused, and the previous one stays in force. One scheduler serves a postoffice; a second one exits
and names the first. SIGTERM or SIGINT stops it: it begins no new deliveries and waits for
those in progress. After a kill the next start continues with the same state. Exit codes:
0 stopped by a signal, 1 another scheduler runs, or disk error, 64 bad flags, 78 bad
configuration or no postoffice.`

func main() {
	config.Main(&cli.App{
		Name:        "scheduler",
		Usage:       "hand routed messages to transport agents",
		UsageText:   "scheduler [-FHS] [-E N] [-p CHANNEL/HOST] [--check-config] [--strict] [--stop-timeout TIME] [flags]",
		Description: description,
		Flags: append(slices.Concat(config.Flags(), startFlags()),
			&cli.BoolFlag{Name: "check-config", Usage: "check scheduler.conf, report errors and warnings, and exit"},
			&cli.BoolFlag{Name: "strict", Usage: "do not start while unfinished files are in public/: list them and exit 78"},
			&cli.BoolFlag{Name: "start-agents", Usage: "only start agents that run as other users, for a scheduler that is not root (docs/privileges.md)"},
			&cli.BoolFlag{Name: keys.Flag, Usage: keys.Usage},
			&cli.DurationFlag{Name: "stop-timeout", Value: engine.DefaultStopTimeout, Usage: "when stopping, kill agents that have not finished after `TIME`"},
		),
		UseShortOptionHandling: true,
		HideHelpCommand:        true,
		Action:                 run,
	})
}

func run(c *cli.Context) error {
	if c.NArg() > 0 {
		return cli.Exit("no arguments are allowed; see --help", config.ExitUsage)
	}
	settings, err := config.FromCLI(c)
	if err != nil {
		return err
	}
	if c.Bool(keys.Flag) {
		return keys.Help(settings, "ta-smtp")
	}
	if c.Bool("start-agents") {
		return startAgents(c.Context, settings)
	}
	if c.Bool("check-config") {
		return checkConfig(settings, c.App.Writer, os.Stderr)
	}
	log, err := logging.New(os.Stderr, settings.LogFormat(), settings.String("LOGLEVEL", ""), "scheduler")
	if err != nil {
		return cli.Exit(err, config.ExitConfig)
	}
	defer logging.Flush(log)
	follower := lastgood.Follow(settings, "scheduler", lastgood.Use(settings, "scheduler", log), log, func() (*config.Config, error) { return config.FromCLI(c) })
	cfg, err := scheduler.ConfigFrom(settings)
	if err != nil {
		return err
	}
	if err := applyStart(c, &cfg); err != nil {
		return err
	}
	cfg.Reread.Ask, cfg.Reread.Read = config.Hangups(), scheduler.Reread(settings, cfg.Conf, follower)
	cfg.Alone, cfg.Log, cfg.Service = follower.Publish, log, sdnotify.FromEnvironment(log)
	machine.Share()
	if err := enterSandbox(settings, &cfg); err != nil {
		return err
	}
	return engine.Run(c.Context, cfg)
}
