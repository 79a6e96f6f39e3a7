package main

import (
	"errors"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"zmailer/internal/postoffice"
	"zmailer/internal/run/config"
	"zmailer/internal/stage/tasmtp/tlsrpt"
	"zmailer/internal/ui/text"
)

func tlsrptCommand() *cli.Command {
	return &cli.Command{
		Name:      "tlsrpt",
		Usage:     "print the TLS reports of a day (RFC 8460)",
		UsageText: "zmctl tlsrpt [--json] DAY [DOMAIN]",
		Description: `Prints the report of RFC 8460 for a domain that mail was sent to, or one for each domain, from
tlsrpt/ of the postoffice. DAY is like 2026-11-22, UTC, or yesterday. Nothing is sent; the
DNS record _smtp._tls.DOMAIN contains the address for reports.

Exit codes: 0 printed, 1 no data for that day, 64 bad arguments.`,
		Flags:  []cli.Flag{&cli.BoolFlag{Name: "json", Usage: "no effect: these reports are always JSON"}},
		Action: printTLSReports,
	}
}

func printTLSReports(c *cli.Context) error {
	if c.NArg() < 1 || c.NArg() > 2 {
		return cli.Exit("zmctl tlsrpt needs a DAY and optionally a DOMAIN; see --help", config.ExitUsage)
	}
	day, err := time.Parse(time.DateOnly, c.Args().First())
	if c.Args().First() == "yesterday" {
		day, err = time.Now().Add(-24*time.Hour), nil
	}
	if err != nil {
		return cli.Exit(c.Args().First()+" is not a day like 2026-11-22", config.ExitUsage)
	}
	settings, err := config.FromCLI(c)
	if err != nil {
		return err
	}
	hostname, err := settings.Hostname()
	if err != nil {
		return err
	}
	po, _, err := open(c)
	if err != nil {
		return err
	}
	sessions, err := readSessions(po, day)
	if err != nil {
		return cli.Exit(err, 1)
	}
	contact := settings.String("POSTMASTER", "postmaster")
	if !strings.Contains(contact, "@") {
		contact += "@" + hostname
	}
	domains := tlsrpt.Domains(sessions)
	if c.NArg() == 2 {
		domains = []string{c.Args().Get(1)}
	}
	for _, domain := range domains {
		r := tlsrpt.Make(sessions, domain, hostname, contact, day)
		if err := text.PrintJSON(c.App.Writer, r); err != nil {
			return err
		}
	}
	return nil
}

func readSessions(po *postoffice.PostOffice, day time.Time) ([]tlsrpt.Session, error) {
	name := postoffice.TLSRPT + "/" + tlsrpt.Day(day)
	f, err := po.FS().Open(name, os.O_RDONLY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errors.New(name + ": nothing was counted that day")
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return tlsrpt.Read(f)
}
