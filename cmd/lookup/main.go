// Command lookup answers the daemons' lookups in databases, directories and web services.
package main

import (
	"os"
	"time"

	"github.com/urfave/cli/v2"

	"zmailer/internal/lookup"
	"zmailer/internal/run/config"
	"zmailer/internal/run/keys"
	"zmailer/internal/run/logging"
)

const description = `Answers lookups on standard input and output by the socketmap protocol
(socketmap_table(5)), one at a time. The daemons start it for the sources sqlite:FILE,
ldap:FILE, pgsql:FILE, mysql:FILE, redis:FILE and http:FILE of their tables; FILE defines the
query, and is read again when it changes. docs/tables.md describes its settings. By hand:

    printf '12:aliases bond,' | lookup sqlite:/etc/zmailer/users.sqlite
    12:OK jane, joe,

OK and a value, or NOTFOUND, is the answer of the database or directory. TEMP and TIMEOUT
give the reason why the query failed; the router then defers the message. lookup uses 512 MB
of memory at most, and logs to standard error.

lookup pam SERVICE checks one password by PAM for smtpserver (docs/auth.md): a line of JSON
in, one out.

    echo '{"user":"jane","password":"secret"}' | lookup pam smtp

lookup ldap-bind FILE and lookup oauth2 FILE check a password by a bind to an LDAP directory, and a
token by OAuth 2.0 introspection, in the same way.

Exit codes: 0 standard input has ended, 1 the input is not in the socketmap protocol,
64 bad flags or arguments, 78 FILE cannot be used.`

func main() {
	config.Main(&cli.App{
		Name:        "lookup",
		Usage:       "answer lookups in databases and directories, check passwords by PAM",
		UsageText:   "lookup [--timeout INTERVAL] SCHEME:FILE | pam SERVICE | ldap-bind FILE | oauth2 FILE",
		Description: description,
		Flags: append(config.Flags(),
			&cli.DurationFlag{Name: "timeout", Value: 5 * time.Second, Usage: "answer TIMEOUT after `INTERVAL`"},
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
	if c.NArg() == 2 && lookup.IsCredentials(c.Args().First()) {
		if err := lookup.LimitMemory(); err != nil {
			return err
		}
		return lookup.CheckCredentials(c.Context, lookup.Credentials{
			Scheme: c.Args().First(), File: c.Args().Get(1), Timeout: c.Duration("timeout"), In: os.Stdin, Out: os.Stdout, Open: keys.FromEnvironment().Secret,
		})
	}
	if c.NArg() != 1 {
		return cli.Exit("one source is required, such as sqlite:FILE or ldap:FILE, or pam SERVICE, ldap-bind FILE or oauth2 FILE; see --help", config.ExitUsage)
	}
	settings, err := config.FromCLI(c)
	if err != nil {
		return err
	}
	log, err := logging.New(os.Stderr, settings.LogFormat(), settings.String("LOGLEVEL", ""), "lookup")
	if err != nil {
		return cli.Exit(err, config.ExitConfig)
	}
	defer logging.Flush(log)
	if err := lookup.LimitMemory(); err != nil {
		return err
	}
	return lookup.Run(c.Context, lookup.Config{
		Source: c.Args().First(), Timeout: c.Duration("timeout"), In: os.Stdin, Out: os.Stdout, Open: keys.FromEnvironment().Secret, Log: log,
	})
}
