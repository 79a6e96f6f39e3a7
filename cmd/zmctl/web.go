package main

import "github.com/urfave/cli/v2"

func webCommand() *cli.Command {
	return &cli.Command{
		Name:      "web",
		Usage:     "show the postoffice in a browser",
		UsageText: "zmctl web [--write] [--listen HOST:PORT] [--token-file FILE] [--accounts FILE]",
		Description: `Serves pages: the queue by host and age, the threads of the scheduler, each message with its
history, the traffic of the last hours, and the operations of operators. With --write
they can hold, release, freeze, thaw, retry, reroute, expire and remove mail, after
confirmation, and undo it. The pages need no JavaScript.

    zmctl web
    zmctl web --write --listen 127.0.0.1:8080

It listens on 127.0.0.1:2580 unless WEBLISTEN or --listen names another address; an
address that other machines can reach requires a certificate (WEBCERT, WEBKEY). From another
machine use ssh -L 2580:127.0.0.1:2580. A login needs the token in .web.token of the postoffice,
which is created at the first start and readable only by its owner; or a name and password from
the file of accounts that --accounts or WEBACCOUNTS names (zmctl passwd writes it), or of this
machine with pam:SERVICE. WEBREADERS and WEBWRITERS limit what accounts may do. The pages have
the rights of the user that runs zmweb: root, or the user of the daemons.

This command executes the program zmweb.

Exit codes: 0 ended by a signal, 1 it cannot listen, 71 the program zmweb is missing, 78 bad
configuration.`,
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "write", Usage: "allow operators to change queued mail; otherwise the pages are read-only"},
			&cli.StringFlag{Name: "listen", Usage: "serve on `HOST:PORT`"},
			&cli.StringFlag{Name: "token-file", Usage: "read the token from `FILE`, created if it is missing; off: no token"},
			&cli.StringFlag{Name: "accounts", Usage: "read names and passwords from `FILE`; pam:SERVICE: use the accounts of this machine"},
		},
		Action: func(c *cli.Context) error { return become(c, "zmweb") },
	}
}
