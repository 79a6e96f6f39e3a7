// Command lookup answers the router's lookups in a SQLite file or an LDAP directory.
package main

import (
	"os"
	"time"

	"github.com/urfave/cli/v2"

	"zmailer/internal/lookup"
	"zmailer/internal/run/config"
	"zmailer/internal/run/logging"
)

const description = `Answers lookups on standard input and output by the socketmap protocol
(socketmap_table(5)), one at a time. The router starts it for the sources sqlite:FILE and
ldap:FILE of ROUTES, ALIASES, FQDNALIASES and LOCALNAMES; FILE says what is asked and is
read again when it has changed. docs/tables.md tells its settings. By hand:

    printf '12:aliases bond,' | lookup sqlite:/etc/zmailer/users.sqlite
    12:OK jane, joe,

OK and a value, or NOTFOUND, is what the database or directory has said. TEMP and TIMEOUT
tell why it could not be asked; the router defers the message then. It changes nothing,
and logs to standard error.

lookup pam SERVICE checks one password by PAM for smtpserver (docs/auth.md): a line of JSON
in, one out.

    echo '{"user":"jane","password":"secret"}' | lookup pam smtp

Exit codes: 0 its standard input ended, 1 what it reads is no socketmap protocol, 64 bad
flags or arguments, 78 FILE cannot be used.`

func main() {
	config.Main(&cli.App{
		Name:        "lookup",
		Usage:       "answer lookups in SQLite files and LDAP directories, check passwords by PAM",
		UsageText:   "lookup [--timeout INTERVAL] sqlite:FILE | ldap:FILE | pam SERVICE",
		Description: description,
		Flags: append(config.Flags(),
			&cli.DurationFlag{Name: "timeout", Value: 5 * time.Second, Usage: "say TIMEOUT after `INTERVAL`"},
			&cli.StringFlag{Name: "pam-dir", Usage: "read PAM's services in `DIR` instead of /etc/pam.d"},
		),
		HideHelpCommand: true,
		Action:          run,
	})
}

func run(c *cli.Context) error {
	if c.NArg() == 2 && c.Args().First() == "pam" {
		return lookup.CheckPassword(lookup.PAM{Service: c.Args().Get(1), Dir: c.String("pam-dir"), In: os.Stdin, Out: os.Stdout})
	}
	if c.NArg() != 1 {
		return cli.Exit("want one source, sqlite:FILE or ldap:FILE, or pam SERVICE; --help tells more", config.ExitUsage)
	}
	settings, err := config.FromCLI(c)
	if err != nil {
		return err
	}
	log, err := logging.New(os.Stderr, settings.String("LOG", ""), settings.String("LOGLEVEL", ""), "lookup")
	if err != nil {
		return cli.Exit(err, config.ExitConfig)
	}
	defer logging.Flush(log)
	return lookup.Run(c.Context, lookup.Config{
		Source: c.Args().First(), Timeout: c.Duration("timeout"), In: os.Stdin, Out: os.Stdout, Log: log,
	})
}
