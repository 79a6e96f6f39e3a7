package main

import "github.com/urfave/cli/v2"

func webCommand() *cli.Command {
	return &cli.Command{
		Name:      "web",
		Usage:     "show the postoffice in a browser",
		UsageText: "zmctl web [--write] [--listen HOST:PORT] [--token-file FILE] [--accounts FILE]",
		Description: `Serves pages: the queue by host and age, the threads of the scheduler, each message with its
history, the traffic of the last hours, and the orders of operators. With --write
they can hold, release, freeze, thaw, retry, reroute, give up and remove mail, after
confirmation, and undo it. The pages need no JavaScript.

    zmctl web
    zmctl web --write --listen 127.0.0.1:8080

It listens on 127.0.0.1:2580 unless WEBLISTEN or --listen names another address; beyond this
machine only with a certificate (WEBCERT, WEBKEY). From elsewhere: ssh -L 2580:127.0.0.1:2580.
A login needs the token in .web.token of the postoffice, which is made at the first start
and readable by its owner alone, or a name and password of the file of accounts that
--accounts or WEBACCOUNTS names (zmctl passwd writes it), or of this machine with pam:SERVICE;
WEBREADERS and WEBWRITERS limit what accounts may do. The pages show and do what the user
may who runs it: root, or the user of the daemons.

It is the program zmweb, which this command becomes.

Exit codes: 0 ended by a signal, 1 it cannot listen, 71 the program zmweb is missing, 78 bad
configuration.`,
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "write", Usage: "take orders; else the pages are for reading alone"},
			&cli.StringFlag{Name: "listen", Usage: "serve on `HOST:PORT`"},
			&cli.StringFlag{Name: "token-file", Usage: "the token is in `FILE`, made if it is missing; off: there is none"},
			&cli.StringFlag{Name: "accounts", Usage: "names and passwords are in `FILE`; pam:SERVICE: they are those of this machine"},
		},
		Action: func(c *cli.Context) error { return become(c, "zmweb") },
	}
}
