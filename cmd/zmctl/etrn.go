package main

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"zmailer/internal/admin/view"
	"zmailer/internal/mail/address"
	"zmailer/internal/run/config"
	"zmailer/internal/wire/mailq"
)

func etrnCommand() *cli.Command {
	return &cli.Command{
		Name:      "etrn",
		Usage:     "try a host's mail now, as ETRN does",
		UsageText: "zmctl etrn HOST|@DOMAIN ...",
		Description: `Starts the threads of a host now, even if they wait for the next attempt, for a failed host to
recover, or because of a queueonly clause. @DOMAIN is that host and its subdomains. The command
writes nothing into the messages, so its cost does not depend on their number. If no scheduler
runs, it writes the request to transport/ for the next one.

zmctl flush does more: it selects mail by patterns and selectors, resets the next attempt of
each recipient, records an operation that the history shows, and asks for confirmation.

    zmctl etrn mx.example.com
    mx.example.com: tried now

Exit codes: 0 mail is tried, or the request is recorded for the next scheduler; 1 no mail waits
for any of the hosts, or the scheduler does not answer; 64 no host or a bad one; 78 no
postoffice.`,
		Action: runETRN,
	}
}

// isHost reports whether something is a domain or an address literal, with @ before it or not,
// and behind it a port as routes may name one.
func isHost(text string) bool {
	domain := strings.TrimPrefix(text, "@")
	if i := strings.LastIndexByte(domain, ':'); i > strings.LastIndexByte(domain, ']') {
		if _, err := strconv.ParseUint(domain[i+1:], 10, 16); err != nil {
			return false
		}
		domain = domain[:i]
	}
	domain = strings.TrimSuffix(domain, ".")
	d, err := (address.Mailbox{Local: "x", Domain: domain}).ASCIIDomain()
	return err == nil && d != ""
}

func runETRN(c *cli.Context) error {
	if c.NArg() == 0 {
		return cli.Exit("zmctl etrn needs a host; see --help", config.ExitUsage)
	}
	for _, host := range c.Args().Slice() {
		if !isHost(host) {
			return cli.Exit(fmt.Sprintf("zmctl etrn: %.200q is not a host", host), config.ExitUsage)
		}
	}
	po, dir, err := open(c)
	if err != nil {
		return err
	}
	defer closeFS(po)
	a, err := view.CallScheduler(c.Context, dir)
	if errors.Is(err, view.ErrNoScheduler) {
		for _, host := range c.Args().Slice() {
			if err := po.Queue.AskStart(host); err != nil {
				return err
			}
			fmt.Fprintf(c.App.Writer, "%s: no scheduler is running; the next one tries it when it starts\n", host)
		}
		return nil
	}
	if err != nil {
		return err
	}
	defer a.Close()
	some := false
	for _, host := range c.Args().Slice() {
		if err := a.Conn.SetDeadline(time.Now().Add(view.SocketPatience)); err != nil {
			return err
		}
		text, err := a.Ask(mailq.Request{Kind: mailq.ETRN, Host: host}, nil)
		if err != nil {
			return err
		}
		if strings.Contains(text, "didn't") {
			fmt.Fprintf(c.App.Writer, "%s: no mail waits for it\n", host)
			continue
		}
		some = true
		fmt.Fprintf(c.App.Writer, "%s: tried now\n", host)
	}
	if !some {
		return cli.Exit("", 1)
	}
	return nil
}
