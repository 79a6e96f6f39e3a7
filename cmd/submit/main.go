// Command submit takes a message from standard input, as sendmail does.
package main

import (
	"cmp"
	"os"
	"slices"

	"github.com/urfave/cli/v2"

	"zmailer/internal/run/config"
	"zmailer/internal/run/lease"
	"zmailer/internal/stage/submit"
)

const description = `Reads a message from standard input and stores it as a file, first in
$POSTOFFICE/public/, then, when it is on the disk, in $POSTOFFICE/router/. Exit code 0
means that it is there. submit replaces sendmail and runs as any user:

    printf 'Subject: hello\n\nhi\n' | submit -f me@example.org you@example.net
    submit -t -i < message          recipients from To, Cc and Bcc; Bcc is removed
    submit -bs                      an SMTP session on standard input and output

Missing header fields are added, text without a header becomes the body, and mbox lines
"From ..." at the top are removed. Line ends become LF if the first line ends in CRLF. Without
-i a line with a single dot ends the message. submit reads SYNC, POSTOFFICE, HOSTNAME
and ROUTERDIRS of zmailer.conf. Options of other sendmails that are not listed (-o..., -e...,
-h COUNT, -O, -X) are accepted and have no effect; docs/submit.md lists them. Flags may be
joined, as in -ti or -fme@example.org, and mixed with recipients; after "--" all arguments are
recipients.

With -v submit runs until the message is gone or set aside for the postmaster, or until ^C, and
prints the reply of each recipient's host. The scheduler shows replies only to root and the
postoffice's owner; other users see the state: waiting, being routed, queued, gone.

Exit codes: 0 accepted, 64 bad flags or no recipient, 65 no valid address, 66 no input, 74 error,
75 try again (nothing was accepted), 78 bad configuration or no postoffice.`

func main() {
	app := &cli.App{
		Name:        "submit",
		Usage:       "submit a message, as sendmail does",
		UsageText:   "submit [flags] [recipient ...] < message",
		Description: description,
		Flags: append(config.Flags(),
			&cli.StringFlag{Name: "f", Aliases: []string{"from"}, Usage: "the sender is `ADDRESS`; <> is the null sender (also -r)"},
			&cli.BoolFlag{Name: "t", Usage: "add the recipients of To, Cc and Bcc; store the message without Bcc"},
			&cli.BoolFlag{Name: "i", Usage: "a line with a single dot does not end the message (also -oi)"},
			&cli.StringFlag{Name: "F", Usage: "the sender's full `NAME`; the default is NAME of the environment"},
			&cli.StringFlag{Name: "N", Usage: "report `WHEN`: never, or some of success,failure,delay"},
			&cli.StringFlag{Name: "R", Usage: "return the message as `PART`: full or hdrs"},
			&cli.StringFlag{Name: "V", Usage: "envelope `ID` that reports contain"},
			&cli.StringFlag{Name: "B", Usage: "body `TYPE`: 7bit or 8bitmime"},
			&cli.StringFlag{Name: "P", Usage: "put the message into directory `N`: 0 is router/, 1 the first of ROUTERDIRS, and so on"},
			&cli.StringFlag{Name: "verp", Usage: "send each recipient a message whose sender address contains the recipient; `XY` are the characters before the user and the domain (-XVXY; -XV is +=)"},
			&cli.StringFlag{Name: "b", Value: "m", Usage: "`MODE`: m submits, s is an SMTP session, p lists the queue, v shows where recipients go, i reads the aliases, d starts the daemons"},
			&cli.StringFlag{Name: "q", Usage: "-q tries all queued mail now, -qIID a message, -qRHOST a host, -qSSENDER a sender's; -qTIME has no effect (`WHAT`)"},
			&cli.BoolFlag{Name: "v", Usage: "print each step, the spool ID, and the delivery of the message until it is gone"},
			&cli.BoolFlag{Name: "id", Usage: "print the spool ID, and exit when the message is accepted"},
		),
		HideHelpCommand: true,
		Action:          dispatch,
	}
	os.Args = append(os.Args[:1:1], submit.NormaliseArgs(calledAs(os.Args), takesValue(app.Flags))...)
	config.Main(app)
}

// takesValue reports which long flags are followed by a value.
func takesValue(flags []cli.Flag) func(string) bool {
	return func(name string) bool {
		return slices.ContainsFunc(flags, func(f cli.Flag) bool {
			d, ok := f.(cli.DocGenerationFlag)
			return ok && d.TakesValue() && slices.Contains(f.Names(), name)
		})
	}
}

// submission returns the configuration that flags, environment and zmailer.conf make.
func submission(c *cli.Context, settings *config.Config) (submit.Config, error) {
	reader := config.NewReader(settings)
	largest := reader.Size("MAXSIZE", 200<<20)
	return submit.Config{
		MaxSize:    largest,
		PostOffice: settings.PostOffice(), Strict: settings.String("SYNC", "normal") == "strict",
		Recipients: c.Args().Slice(), FromHeader: c.Bool("t"), IgnoreDots: c.Bool("i"),
		HasFrom: c.IsSet("f"), From: c.String("f"), FullName: cmp.Or(c.String("F"), os.Getenv("NAME")),
		Notify: c.String("N"), Return: c.String("R"), EnvelopeID: c.String("V"), BodyType: c.String("B"),
		Priority: c.String("P"), RouterDirs: settings.List("ROUTERDIRS"), PerRecipient: c.String("verp"),
		In: os.Stdin, Out: os.Stdout, Err: os.Stderr,
		Verbose: c.Bool("v"), PrintID: c.Bool("id"), Follow: c.Bool("v") && !c.Bool("id"),
		Lease: lease.Use(reader),
	}, reader.Err()
}
