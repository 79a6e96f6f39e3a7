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
		Usage:     "have the scheduler try a host's mail now, as ETRN does",
		UsageText: "zmctl etrn HOST|@DOMAIN ...",
		Description: `Has the threads of a host begin now, whatever they wait for: the next attempt, a trouble of
the host, or a queueonly clause. @DOMAIN is that host and all below it. Nothing is written
into the messages, so it takes no longer for a hundred thousand of them than for one.
Where no scheduler runs it is noted in transport/, for the next one.

zmctl flush does more: it chooses mail by patterns and selectors, forgets the times of each
recipient, leaves an order that the history shows, and asks before it touches much.

    zmctl etrn mx.example.com
    mx.example.com: tried now

Exit codes: 0 something is tried, or noted for the next scheduler; 1 nothing waits for any of
them, or the scheduler does not answer; 64 no host is named, or what is named is none; 78 no
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
		return cli.Exit("zmctl etrn: HOST is wanted; --help tells more", config.ExitUsage)
	}
	for _, host := range c.Args().Slice() {
		if !isHost(host) {
			return cli.Exit(fmt.Sprintf("zmctl etrn: %.200q is no host", host), config.ExitUsage)
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
			fmt.Fprintf(c.App.Writer, "%s: no scheduler runs; the next one tries it when it starts\n", host)
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
			fmt.Fprintf(c.App.Writer, "%s: nothing waits for it\n", host)
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
