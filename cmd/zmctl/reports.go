package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"zmailer/internal/disk/lastgood"
	"zmailer/internal/postoffice"
	"zmailer/internal/postoffice/ledger"
	"zmailer/internal/run/config"
	"zmailer/internal/stage/tasmtp/tlsrpt"
	"zmailer/internal/ui/text"
)

// Exit codes of check --ledger.
const (
	exitUnread     = 1
	exitImbalanced = 2
)

// ledgerPatience returns how often a suspected error is checked again while daemons run.
func ledgerPatience() ledger.Patience {
	return ledger.Patience{Looks: 6, Pause: 300 * time.Millisecond}
}

// checkLedger compares accepted mail with its outcomes.
func checkLedger(c *cli.Context, po *postoffice.PostOffice) error {
	bar := newCounter(c, "ledger", "messages")
	patience := ledgerPatience()
	patience.Seen = bar.Step
	b, err := ledger.Compare(c.Context, po, patience)
	bar.End()
	if err != nil {
		return cli.Exit(err, exitUnread)
	}
	if c.Bool("json") {
		err = text.PrintJSON(c.App.Writer, b)
	} else {
		err = text.PrintBalance(c.App.Writer, b)
	}
	if err != nil {
		return err
	}
	if len(b.Wrong) > 0 || b.Difference != (ledger.Count{}) {
		return cli.Exit("", exitImbalanced)
	}
	return nil
}

func settleCommand() *cli.Command {
	return &cli.Command{
		Name:      "settle",
		Usage:     "record in the ledger that a missing message was dealt with",
		UsageText: "zmctl settle ID...",
		Description: `Records messages that zmctl check --ledger reports as missing or uneven as gone, because
their files were removed by hand and cannot be restored. It changes only the ledger. A
message whose files still exist is refused: it is counted when it is finished.

    zmctl settle S10117782A2CnLkQ0vB8C

Exit codes: 0 done, 1 a message has no difference to settle, or still exists; 64 bad
arguments.`,
		Action: opened(ids("zmctl check --ledger"), runSettle),
	}
}

func runSettle(c *cli.Context, o *target, ids []postoffice.SpoolID) error {
	found, err := ledger.Compare(c.Context, o.PostOffice, ledgerPatience())
	if err != nil {
		return err
	}
	j := ledger.New(o.PostOffice, ledger.Config{Role: "zmctl"})
	defer j.Close()
	var errs []error
	for _, id := range ids {
		err := j.Explain(found, id)
		errs = append(errs, err)
		if err == nil {
			fmt.Fprintln(c.App.Writer, id, "settled")
		}
	}
	return errors.Join(errs...)
}

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
	settings, err := lastgood.Accepted(c)
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
	defer closeFS(po)
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
