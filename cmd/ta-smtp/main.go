// Command ta-smtp is the transport agent for other hosts.
package main

import (
	"os"
	"time"

	"github.com/urfave/cli/v2"

	"zmailer/internal/disk/lastgood"
	"zmailer/internal/run/config"
	"zmailer/internal/run/confine"
	"zmailer/internal/run/logging"
	"zmailer/internal/run/machine"
	"zmailer/internal/stage/tasmtp"
)

const description = `Delivers messages to other hosts. The scheduler starts it in $POSTOFFICE/transport/ and
controls it on standard input and output (docs/ta-protocol.md). By hand, with an empty
line at the end:

    cd /var/spool/postoffice/transport && printf '123-45\tmx.example.org\n\n' | ta-smtp smtp

CHANNEL is a channel to serve; the default is all three:
    smtp   the host's servers by MX; host:port, [host], [address]:port without MX
    smtpx  like smtp, but never by MX
    lmtp   host:port, or unix:/path of a socket
A channel whose name begins with one of these, like smtp-slow, is served in the same way.

It reuses a connection for the next message to the same channel and host
(docs/delivery.md). It reads zmailer.conf (HOSTNAME, SMTPPORT, RESOLVER, SYNC),
../queue/NAME, and NAME, where it marks each recipient's outcome. It logs to standard
error. SOURCES in the environment lists the addresses that it connects from, separated by
commas, each with =NAME if EHLO uses another name there; all attempts of a message use the
same address. HELO is the name for EHLO. The scheduler sets both from sources= and helo=.
Rules in the file replies beside zmailer.conf override the codes of replies:
    ta-smtp --test-reply smtp/example.com '450 4.7.1 Greylisted'
The files tls and credentials there define TLS requirements and logins (docs/tls.md); tls=
and auth= of a clause are passed as TLSPOLICY and ACCOUNT.

Exit codes: 0 the scheduler ended it, 1 it cannot read from or write to the scheduler,
64 bad flags or channels, 78 bad configuration or not in a postoffice's transport/.`

func main() {
	config.Main(&cli.App{
		Name:        "ta-smtp",
		Usage:       "deliver to other hosts by SMTP and LMTP",
		UsageText:   "ta-smtp [--slots N] [--connections N] [--idle TIME] [CHANNEL ...]\nta-smtp --test-reply CHANNEL/HOST REPLY\nta-smtp --test-tls [CHANNEL/]HOST\nta-smtp --test-dkim DOMAIN | --check-config | --probe",
		Description: description,
		Flags: append(config.Flags(),
			&cli.IntFlag{Name: "slots", Value: 1, Usage: "make `N` deliveries at once; 1 keeps their order"},
			&cli.IntFlag{Name: "connections", Value: 20, Usage: "open at most `N` connections to a host; small messages share them"},
			&cli.DurationFlag{Name: "idle", Value: 10 * time.Second, Usage: "keep an idle connection for `TIME`; 0: close each after its message"},
			&cli.StringFlag{Name: "test-reply", Usage: "show which rule of the file replies applies to a reply, the argument, from `CHANNEL/HOST`, and exit"},
			&cli.StringFlag{Name: "test-tls", Usage: "show the TLS requirements for `HOST` and their origin, and exit"},
			&cli.StringFlag{Name: "test-dkim", Usage: "show the keys that sign mail from `DOMAIN`, and whether they are published, and exit"},
			&cli.BoolFlag{Name: "probe", Usage: "answer whether next hops take recipients: lines ID CHANNEL HOST ADDRESS on standard input (docs/relay-domains.md); smtpserver starts it"},
			&cli.BoolFlag{Name: "check-config", Usage: "check zmailer.conf, replies, discard-ehlo-keywords, tls, credentials, dkim and its keys, report errors, and exit"},
		),
		HideHelpCommand: true,
		Action:          run,
	})
}

func run(c *cli.Context) error {
	if answer := question(c); answer != nil {
		return answer(c)
	}
	served, err := channels(c)
	if err != nil {
		return err
	}
	settings, err := lastgood.Settings(c)
	if err != nil {
		return err
	}
	log, err := logging.New(os.Stderr, settings.LogFormat(), settings.String("LOGLEVEL", ""), "ta-smtp")
	if err != nil {
		return cli.Exit(err, config.ExitConfig)
	}
	defer logging.Flush(log)
	store, saves := useCopies(c, settings, log)
	settings, cfg, err := lastgood.Load(c, settings, "ta-smtp", saves, log, tasmtp.ConfigFrom)
	if err != nil {
		return err
	}
	if err := cfg.Zone(os.Getenv); err != nil {
		return err
	}
	cfg.Channels, cfg.Slots, cfg.Connections, cfg.Idle, cfg.Log = served, c.Int("slots"), c.Int("connections"), c.Duration("idle"), log
	cfg.Named = only(c, store, settings)
	machine.Share()
	if err := confine.Enter("ta-smtp", settings, log); err != nil {
		return err
	}
	return settings.Locate(serve(c, settings, cfg))
}
