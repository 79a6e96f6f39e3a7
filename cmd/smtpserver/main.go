// Command smtpserver accepts messages by SMTP and puts them into router/.
package main

import (
	"os"
	"time"

	"github.com/urfave/cli/v2"

	"zmailer/internal/disk/lastgood"
	"zmailer/internal/run/config"
	"zmailer/internal/run/keys"
	"zmailer/internal/run/logging"
	"zmailer/internal/run/sdnotify"
	"zmailer/internal/stage/smtpserver"
	"zmailer/internal/stage/smtpserver/listen"
)

const description = `Listens for SMTP clients (RFC 5321) and stores each message as a file, first in
$POSTOFFICE/public/, then, when it is on the disk, in $POSTOFFICE/router/. Only then
the client gets 250, with the spool ID that zmctl queue and the logs show.

    smtpserver --postoffice /var/spool/postoffice --listen 127.0.0.1:2525

It reads zmailer.conf (SMTPLISTEN, SUBMISSIONLISTEN, SUBMISSIONSLISTEN, LMTPLISTEN,
TLSCERT, RELAYNETS, MAXSIZE, MAXRCPT, HOSTNAME and more) and files beside it, which are
read again when they change. Clients in RELAYNETS and authenticated users may send
anywhere, all others only to HOSTNAME and the domains in localnames, unless a rule in
the file access decides otherwise (--test-access shows the rule). CHECKS enables SPF,
DKIM and DMARC checks of other hosts' mail, MILTERS passes all mail through filters, and
RCPTCHECK asks the router whether a recipient exists, by default for all mail to our
domains. Sockets that systemd passes replace the addresses.
It supports 8BITMIME, SIZE, PIPELINING, DSN, SMTPUTF8, CHUNKING, ENHANCEDSTATUSCODES,
LIMITS, HELP and, if configured, STARTTLS, REQUIRETLS, AUTH and ETRN.

A full disk gets reply 452 and any other local error 451: the client keeps the message.
SIGTERM or SIGINT stops it: it accepts no new connections and finishes open transactions.
SIGHUP makes it read zmailer.conf again: the settings hold for new connections, except those that
need a restart (docs/reload.md); conf-read in the log names them.
Exit codes: 0 stopped by a signal, 1 cannot listen or continue, 64 bad flags, 78 bad
configuration or no postoffice.`

func main() {
	config.Main(&cli.App{
		Name:        "smtpserver",
		Usage:       "accept messages by SMTP",
		UsageText:   "smtpserver [--listen HOST:PORT | --test-access KEY=VALUE...] [flags]",
		Description: description,
		Flags: append(config.Flags(),
			&cli.StringSliceFlag{Name: "listen", Usage: "listen on `HOST:PORT` instead of SMTPLISTEN; may be repeated"},
			&cli.BoolFlag{Name: keys.Flag, Usage: keys.Usage},
			&cli.BoolFlag{Name: "test-access", Usage: "show the decision of the access rules about client=ADDRESS from=ADDRESS to=ADDRESS ..., and exit (docs/access.md)"},
			&cli.IntFlag{Name: "max-connections", Usage: "serve at most `N` clients at once instead of SMTPCONNECTIONS; further clients get 421"},
			&cli.DurationFlag{Name: "timeout", Value: 5 * time.Minute, Usage: "close a connection without a complete command after `TIME`"},
			&cli.DurationFlag{Name: "stop-timeout", Value: 30 * time.Second, Usage: "when stopping, abort transactions that last longer than `TIME`"},
		),
		HideHelpCommand: true,
		Action:          run,
	})
}

func run(c *cli.Context) error {
	if c.NArg() > 0 && !c.Bool("test-access") {
		return cli.Exit("unexpected arguments; see --help", config.ExitUsage)
	}
	settings, err := config.FromCLI(c)
	if err != nil {
		return err
	}
	if c.Bool(keys.Flag) {
		return keys.Help(settings, "smtpserver")
	}
	log, err := logging.New(os.Stderr, settings.LogFormat(), settings.String("LOGLEVEL", ""), "smtpserver")
	if err != nil {
		return cli.Exit(err, config.ExitConfig)
	}
	defer logging.Flush(log)
	store := lastgood.Use(settings, "smtpserver", log)
	opener, err := openKeys(c, settings)
	if err != nil {
		return err
	}
	store.OpenBy(opener)
	cfg, err := configure(c, settings, log, opener)
	if err != nil {
		return err
	}
	if c.Bool("test-access") {
		return testAccess(c, cfg)
	}
	cfg.Service, cfg.Hangup = sdnotify.FromEnvironment(log), config.Hangups()
	follower := lastgood.Follow(settings, "smtpserver", store, log, lastgood.Reading(c, smtpserver.ConfigFrom))
	cfg.Follow, cfg.Loaded = follower, follower.Settle
	cfg.Reread = func() (smtpserver.Config, error) { return reread(c, follower, log, opener) }
	cfg.Privileged = opener.Listen
	if cfg.Activated, err = listen.Activated(); err != nil {
		return cli.Exit(err, config.ExitConfig)
	}
	return serve(c.Context, settings, cfg)
}
