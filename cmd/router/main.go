// Command router decides where the recipients of accepted messages go.
package main

import (
	"os"

	"github.com/urfave/cli/v2"

	"zmailer/internal/disk/lastgood"
	"zmailer/internal/run/config"
	"zmailer/internal/run/logging"
	"zmailer/internal/run/machine"
	"zmailer/internal/run/sdnotify"
	"zmailer/internal/stage/router"
)

const description = `Takes each message from $POSTOFFICE/router/, decides for every recipient by which
channel, to which host and for which user it is to be delivered, puts a Received line
on top, and hands the message to the scheduler: the file goes to $POSTOFFICE/queue/,
the decisions go as a work specification to $POSTOFFICE/transport/.

    router --config /etc/zmailer/zmailer.conf
    router --postoffice ./var/po --once --log-level debug     route by hand, with a detailed log

It reads zmailer.conf (HOSTNAME, POSTMASTER, TRUSTED, LOCALUSERS, ROUTERWORKERS,
ROUTERPOLL, ROUTERTRIES, ROUTERDIRS, ROUTERAGING, RESUBMIT, RESUBMITEXPIRY, PUBLICKEEP,
POSTMANCOPY, HASHLEVELS, METRICS, SYNC) and beside it the tables routes, aliases,
fqdnaliases and localnames. Changed tables are read again; a table with an error is
refused with its line, and the old one stays in use. Any number of routers may run at
once. Messages are routed oldest first; each directory of ROUTERDIRS is served when those
before it are empty (docs/order.md).

A message is moved to $POSTOFFICE/deferred/ if its recipients cannot be looked up now. It is
routed again after 5 minutes, then after twice as long each time (RESUBMIT), and fails
after 3 days (RESUBMITEXPIRY). A message with a broken envelope, or one that has crashed
ROUTERTRIES routers, is moved to $POSTOFFICE/postman/; the log has the reason.

SIGHUP makes it read zmailer.conf again and go by it after the messages in progress; what needs
a restart (docs/reload.md) is named in the log. SIGTERM or SIGINT stops it after the messages in progress. The next router routes the
messages of a killed one again. Exit codes: 0 stopped by a signal, or done (--once),
1 disk error, 64 bad flags, 78 bad configuration, a bad table or
no postoffice.`

func main() {
	config.Main(&cli.App{
		Name:            "router",
		Usage:           "decide where messages go",
		UsageText:       "router [-s] [--workers N] [--check-config | --once | --verify [ADDRESS...]] [--strict] [flags]",
		Description:     description,
		Flags:           append(config.Flags(), flags()...),
		HideHelpCommand: true,
		Action:          run,
	})
}

func run(c *cli.Context) error {
	if c.NArg() > 0 && !c.Bool("verify") {
		return cli.Exit("no arguments are allowed; see --help", config.ExitUsage)
	}
	settings, err := lastgood.Settings(c)
	if err != nil {
		return err
	}
	if help := helping(c); help != nil {
		return help(settings)
	}
	log, err := logging.New(os.Stderr, settings.LogFormat(), settings.String("LOGLEVEL", ""), "router")
	if err != nil {
		return cli.Exit(err, config.ExitConfig)
	}
	defer logging.Flush(log)
	follower, err := keep(c, settings, log)
	if err != nil {
		return err
	}
	if c.Bool("verify") {
		return verify(c, settings, log)
	}
	cfg, err := router.ConfigFrom(settings)
	if err != nil {
		return err
	}
	if c.Bool("check-config") {
		return checkConfig(c, settings, cfg)
	}
	if err := applyFlags(c, &cfg); err != nil {
		return err
	}
	cfg.Log, cfg.Service = log, sdnotify.FromEnvironment(log)
	follow(c, &cfg, follower)
	machine.Share()
	gone, err := enterSandbox(settings, &cfg, log)
	if err != nil {
		return err
	}
	return settings.Locate(routeUntil(c.Context, gone, cfg))
}
