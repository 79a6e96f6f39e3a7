// Command smtpserver takes messages by SMTP and puts them into router/.
package main

import (
	"errors"
	"os"
	"time"

	"github.com/urfave/cli/v2"

	"zmailer/internal/run/config"
	"zmailer/internal/run/logging"
	"zmailer/internal/run/sdnotify"
	"zmailer/internal/stage/smtpserver"
	"zmailer/internal/stage/smtpserver/listen"
)

const description = `Listens for SMTP clients (RFC 5321) and stores each message as a file, first in
$POSTOFFICE/public/, then, when it is on the disk, in $POSTOFFICE/router/; only then
the client is told 250, with the spool ID that zmctl queue and the logs show.

    smtpserver --postoffice /var/spool/postoffice --listen 127.0.0.1:2525

It reads zmailer.conf (SMTPLISTEN, SUBMISSIONLISTEN, SUBMISSIONSLISTEN, LMTPLISTEN,
TLSCERT, RELAYNETS, MAXSIZE, MAXRCPT, HOSTNAME and more) and files beside it, which are
read again when they change. Clients in RELAYNETS and users who have logged in may send
anywhere, all others only to HOSTNAME and the domains in localnames, unless the file
access says otherwise (--test-access tells which rule decides). CHECKS has it look who
vouches for strangers' mail, MILTERS shows all mail to filters, RCPTCHECK has the router
asked whether there is such a recipient: by itself, about strangers' mail for domains of
ours. Sockets that systemd passes are served in place of the addresses.
It speaks 8BITMIME, SIZE, PIPELINING, DSN, SMTPUTF8, CHUNKING, ENHANCEDSTATUSCODES, LIMITS,
HELP, and where it is so configured STARTTLS, REQUIRETLS, AUTH and ETRN.

A full disk is answered 452 and any other trouble of ours 451: the client keeps the
message. SIGTERM or SIGINT ends it in order: no new connections, messages on their way
are finished. Exit codes: 0 stopped by a signal, 1 cannot listen or go on, 64 bad
flags, 78 bad configuration or no postoffice.`

func main() {
	config.Main(&cli.App{
		Name:        "smtpserver",
		Usage:       "take messages by SMTP",
		UsageText:   "smtpserver [--listen HOST:PORT | --test-access KEY=VALUE...] [flags]",
		Description: description,
		Flags: append(config.Flags(),
			&cli.StringSliceFlag{Name: "listen", Usage: "listen on `HOST:PORT` instead of SMTPLISTEN; may be repeated"},
			&cli.BoolFlag{Name: "test-access", Usage: "tell what the rules in access say of client=ADDRESS from=ADDRESS to=ADDRESS ..., and exit (docs/access.md)"},
			&cli.IntFlag{Name: "max-connections", Usage: "serve `N` clients at once instead of SMTPCONNECTIONS, answer 421 to more"},
			&cli.DurationFlag{Name: "timeout", Value: 5 * time.Minute, Usage: "close a connection whose command is not there after `TIME`, or that was silent so long"},
			&cli.DurationFlag{Name: "stop-timeout", Value: 30 * time.Second, Usage: "when stopping, cut messages that are not through after `TIME`"},
		),
		HideHelpCommand: true,
		Action:          run,
	})
}

func run(c *cli.Context) error {
	if c.NArg() > 0 && !c.Bool("test-access") {
		return cli.Exit("it takes no arguments; --help tells the flags", config.ExitUsage)
	}
	settings, err := config.FromCLI(c)
	if err != nil {
		return err
	}
	log, err := logging.New(os.Stderr, settings.String("LOG", ""), settings.String("LOGLEVEL", ""), "smtpserver")
	if err != nil {
		return cli.Exit(err, config.ExitConfig)
	}
	defer logging.Flush(log)
	cfg, err := smtpserver.ConfigFrom(settings)
	if err != nil {
		return err
	}
	if c.Bool("test-access") {
		if err = smtpserver.TestAccess(cfg, c.Args().Slice(), c.App.Writer); errors.Is(err, smtpserver.ErrQuestion) {
			return cli.Exit("--test-access: "+err.Error(), config.ExitUsage)
		}
		return err
	}
	if addrs := c.StringSlice("listen"); len(addrs) > 0 {
		if err := smtpserver.CheckListen(addrs); err != nil {
			return cli.Exit("--listen: "+err.Error(), config.ExitUsage)
		}
		cfg.Listen, cfg.ListenUnset = addrs, false
	}
	if c.IsSet("max-connections") {
		cfg.MaxConnections = c.Int("max-connections")
	}
	cfg.ReadTimeout, cfg.WriteTimeout = c.Duration("timeout"), c.Duration("timeout")
	cfg.StopTimeout = c.Duration("stop-timeout")
	cfg.Log, cfg.Service = log, sdnotify.FromEnvironment(log)
	if cfg.Activated, err = listen.Activated(); err != nil {
		return cli.Exit(err, config.ExitConfig)
	}
	return serve(c.Context, settings, cfg)
}
