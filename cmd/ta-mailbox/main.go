// Command ta-mailbox is the transport agent for mailboxes, files and programs of this
// machine.
package main

import (
	"os"
	"slices"

	"github.com/urfave/cli/v2"

	"zmailer/internal/disk/lastgood"
	"zmailer/internal/run/config"
	"zmailer/internal/run/confine"
	"zmailer/internal/run/logging"
	"zmailer/internal/run/machine"
	"zmailer/internal/stage/mailbox"
)

const description = `Delivers to mailboxes, files and programs of this machine. The scheduler starts it in
$POSTOFFICE/transport/ and controls it on standard input and output (docs/ta-protocol.md).
By hand (TAB between name and host; an empty line ends it):

    cd /var/spool/postoffice/transport && ta-mailbox local
    #hungry
    123-45	jim@example.org
    123/76		ok3 delivered to a Maildir
    #hungry

CHANNEL is a channel to serve; the default is all five:
    local      users: the path that MAILBOX defines, /var/mail/%u by default
    virtual    mailboxes of virtual domains, below VIRTUALMAILBOXBASE
    file       the file that the address names
    pipe       the program that the address names, on its standard input: docs/pipe.md
    bitbucket  nowhere: the message is discarded
A path that ends in / is a Maildir, created when it is first needed; any other path is an
mbox file in mboxrd format, locked by FILE.lock and fcntl. An agent that root starts writes
as the recipient, any other as its own user. Programs never run as root.

It reads zmailer.conf (MAILBOX, LOCALUSERS, VIRTUALMAILBOXBASE, HOSTNAME, PIPEUSER, PIPENOBODY, PIPETIMEOUT,
PIPEHEAD), ../queue/NAME, and NAME, where it marks each recipient's outcome. It logs
to standard error.

Exit codes: 0 the scheduler ended it, 1 it cannot read from or write to the scheduler,
64 bad flags or channels, 78 bad configuration or not in a postoffice's transport/.`

func main() {
	config.Main(&cli.App{
		Name:        "ta-mailbox",
		Usage:       "deliver to mailboxes, files and programs",
		UsageText:   "ta-mailbox [--slots N] [CHANNEL ...]",
		Description: description,
		Flags: append(config.Flags(),
			&cli.IntFlag{Name: "slots", Value: 1, Usage: "make `N` deliveries at once; 1 keeps their order"},
		),
		HideHelpCommand: true,
		Action:          run,
	})
}

func run(c *cli.Context) error {
	for _, name := range c.Args().Slice() {
		if !slices.Contains(mailbox.Channels(), name) {
			return cli.Exit("channel "+name+" is not served by this agent; see --help", config.ExitUsage)
		}
	}
	if c.Int("slots") < 1 {
		return cli.Exit("--slots must be 1 or more", config.ExitUsage)
	}
	settings, err := lastgood.Settings(c)
	if err != nil {
		return err
	}
	log, err := logging.New(os.Stderr, settings.LogFormat(), settings.String("LOGLEVEL", ""), "ta-mailbox")
	if err != nil {
		return cli.Exit(err, config.ExitConfig)
	}
	defer logging.Flush(log)
	settings, cfg, err := lastgood.Load(c, settings, lastgood.Root, lastgood.OpenRoot(settings.PostOffice(), log), log, mailbox.ConfigFrom)
	if err != nil {
		return err
	}
	cfg.Channels, cfg.Slots, cfg.Log = c.Args().Slice(), c.Int("slots"), log
	machine.Share()
	if err := confine.Enter("ta-mailbox", settings, log); err != nil {
		return err
	}
	return mailbox.Run(c.Context, cfg, os.Stdin, os.Stdout)
}
