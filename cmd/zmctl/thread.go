package main

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"zmailer/internal/run/config"
	"zmailer/internal/ui/text"
	"zmailer/internal/wire/mailq"
)

func threadCommand() *cli.Command {
	return &cli.Command{
		Name:      "thread",
		Usage:     "list the scheduler's threads, or show one with its messages",
		UsageText: "zmctl thread [--json] [CHANNEL/HOST]",
		Description: `Asks the running scheduler for its threads; a thread is the mail for one channel and host.

    THREAD             STATE    N    R  RUN  TRIED  WAIT  OLDEST  TROUBLE
    smtp/a.example     active   4    4  2/5      9     -     12s
    smtp/dead.example  trouble  1  900  0/1      3   13m      1h  connection refused

The columns are: N messages, R recipients, deliveries in progress and their limit, attempts
since the thread exists, the wait until the next one, the age of the oldest message, and the
last error of the host. States: active; waiting, for the next attempt of its messages;
throttled, by rate or hostrate; trouble, the host failed and is tried again after the wait;
probing, it is tried with one message; paused, by queueonly. Threads that need attention are
first.

With CHANNEL/HOST it shows everything about that thread, and its open recipients.`,
		Flags:  []cli.Flag{&cli.BoolFlag{Name: "json", Usage: "print JSON lines, as the query socket has them (docs/mailq.md)"}},
		Action: runThread,
	}
}

func runThread(c *cli.Context) error {
	if c.NArg() > 1 {
		return cli.Exit("zmctl thread allows at most one CHANNEL/HOST; see --help", config.ExitUsage)
	}
	channel, host, ok := strings.Cut(c.Args().First(), "/")
	if c.NArg() == 1 && (!ok || channel == "" || strings.ContainsAny(channel+host, " \t")) {
		return cli.Exit(c.Args().First()+": a thread is named CHANNEL/HOST, like smtp/example.com", config.ExitUsage)
	}
	a, err := caller(c)
	if err != nil {
		return err
	}
	defer a.Close()
	r := mailq.Request{Kind: mailq.JSONThreads}
	if c.NArg() == 1 {
		r = mailq.Request{Kind: mailq.JSONThread, Channel: channel, Host: host}
	}
	switch w := c.App.Writer; {
	case c.Bool("json"):
		_, err = a.Ask(r, func(line string) error {
			_, err := fmt.Fprintln(w, line)
			return err
		})
	case c.NArg() == 0:
		var list []mailq.ThreadInfo
		if list, err = a.Threads(); err == nil {
			err = text.PrintThreads(w, list)
		}
	default:
		err = a.Thread(channel, host, func(t *mailq.ThreadInfo) error { return text.PrintThread(w, t) },
			func(x *mailq.WaitingInfo) error { return text.PrintWaiting(w, x, time.Now()) })
	}
	if errors.Is(err, mailq.ErrRefused) {
		return errors.New(c.Args().First() + ": " + err.Error())
	}
	return err
}
