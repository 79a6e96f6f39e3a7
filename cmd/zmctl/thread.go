package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"zmailer/internal/admin/view"
	"zmailer/internal/run/config"
	"zmailer/internal/run/human"
	"zmailer/internal/ui/term"
	"zmailer/internal/wire/mailq"
)

func threadCommand() *cli.Command {
	return &cli.Command{
		Name:      "thread",
		Usage:     "list the scheduler's threads, or show one with its messages",
		UsageText: "zmctl thread [--json] [CHANNEL/HOST]",
		Description: `Asks the running scheduler for its threads: all that waits for one channel and host.

    THREAD             STATE    N    R  RUN  TRIED  WAIT  OLDEST  TROUBLE
    smtp/a.example     active   4    4  2/5      9     -     12s
    smtp/dead.example  trouble  1  900  0/1      3   13m      1h  connection refused

N messages, R recipients, deliveries under way of those that the host is given at once,
attempts since the thread came to be, the wait until the next one, the age of the oldest
message, what the host said when it failed. States: active; waiting, for the time of its
messages; throttled, by rate or hostrate; trouble, the host failed and is tried again
then; probing, it is being tried with one message; paused, queueonly. Those that need
attention are first.

With CHANNEL/HOST it tells everything about that thread, and its open recipients.`,
		Flags:  []cli.Flag{&cli.BoolFlag{Name: "json", Usage: "print JSON lines, as the query socket has them (docs/mailq.md)"}},
		Action: runThread,
	}
}

func runThread(c *cli.Context) error {
	if c.NArg() > 1 {
		return cli.Exit("zmctl thread takes one CHANNEL/HOST at most; --help tells its flags", config.ExitUsage)
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
	if c.NArg() == 0 {
		return listThreads(a, c.App.Writer, c.Bool("json"))
	}
	err = showThread(a, c.App.Writer, mailq.Request{Kind: mailq.JSONThread, Channel: channel, Host: host}, c.Bool("json"))
	if errors.Is(err, mailq.ErrRefused) {
		return errors.New(c.Args().First() + ": " + err.Error())
	}
	return err
}

func listThreads(a *view.SchedulerClient, w io.Writer, asJSON bool) error {
	var list []mailq.ThreadInfo
	_, err := a.Ask(mailq.Request{Kind: mailq.JSONThreads}, func(line string) error {
		if asJSON {
			_, err := fmt.Fprintln(w, line)
			return err
		}
		var t mailq.ThreadInfo
		if err := json.Unmarshal([]byte(line), &t); err != nil {
			return fmt.Errorf("read answer: %w", err)
		}
		list = append(list, t)
		return nil
	})
	if err != nil || asJSON {
		return err
	}
	slices.SortStableFunc(list, func(a, b mailq.ThreadInfo) int {
		if n := view.ByNeed(b.State) - view.ByNeed(a.State); n != 0 {
			return n
		}
		return b.Recipients - a.Recipients
	})
	p, t := term.For(w), term.NewTable(w)
	trouble := 60
	if t.Width = term.Width(w); t.Width > 0 {
		trouble = t.Width // the table cuts it
	}
	fmt.Fprint(t, p.Heading("THREAD\tSTATE\tN\tR\tRUN\tTRIED\tWAIT\tOLDEST\tTROUBLE\n"))
	messages, recipients := 0, 0
	for i := range list {
		x := &list[i]
		messages, recipients = messages+x.Messages, recipients+x.Recipients
		fmt.Fprintf(t, "%s\t%s\t%d\t%d\t%s\t%d\t%s\t%s\t%s\n", p.Bold(human.Clean(x.Channel)+"/"+human.Clean(x.Host)), p.State(x.State, x.State), x.Messages, x.Recipients, view.Places(x),
			x.Attempts, view.Wait(x), human.Span(time.Duration(x.OldestSeconds)*time.Second), human.Cut(human.Clean(x.Trouble), trouble))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	// A message to several hosts is in several threads.
	_, err = fmt.Fprintf(w, "%s, %s in %s\n", human.Count(len(list), "thread"), human.Count(recipients, "recipient"), human.Count(messages, "part")+" of messages")
	return err
}

// showThread tells all about one thread.
func showThread(a *view.SchedulerClient, w io.Writer, r mailq.Request, asJSON bool) error {
	first := true
	_, err := a.Ask(r, func(line string) error {
		if asJSON {
			_, err := fmt.Fprintln(w, line)
			return err
		}
		if first {
			first = false
			var t mailq.ThreadInfo
			if err := json.Unmarshal([]byte(line), &t); err != nil {
				return fmt.Errorf("read answer: %w", err)
			}
			return printThread(w, &t)
		}
		var x mailq.WaitingInfo
		if err := json.Unmarshal([]byte(line), &x); err != nil {
			return fmt.Errorf("read answer: %w", err)
		}
		return printWaiting(w, &x, time.Now())
	})
	return err
}

func printThread(w io.Writer, t *mailq.ThreadInfo) error {
	p, b := term.For(w), term.NewTable(w)
	line := func(key, format string, args ...any) {
		fmt.Fprintf(b, "%s\t"+format+"\n", append([]any{key}, args...)...)
	}
	line("thread", "%s", p.Bold(human.Clean(t.Channel)+"/"+human.Clean(t.Host)))
	line("state", "%s", p.State(t.State, view.StateWords(t)))
	if t.Trouble != "" {
		line("trouble", "%s", p.Red(human.Clean(t.Trouble)))
	}
	line("waiting", "%s in %s; %d can go now", human.Count(t.Recipients, "recipient"), human.Count(t.Messages, "message"), t.Ready)
	if !t.Oldest.IsZero() {
		line("oldest", "%s, of %s", human.Span(time.Duration(t.OldestSeconds)*time.Second), t.Oldest.Local().Format(human.TimeFormat))
	}
	line("running", "%s, maxthr %s", view.Places(t), limit(t.MaxThread))
	line("ring", "%s: %d under way, maxring %s, maxchannel %s", t.Clause, t.RingRunning, limit(t.MaxRing), limit(t.MaxChannel))
	if t.PID > 0 {
		line("agent", "pid %d", t.PID)
	}
	line("attempts", "%d", t.Attempts)
	fmt.Fprintln(b)
	return b.Flush()
}

func limit(n int) string {
	if n == 0 {
		return "none"
	}
	return strconv.Itoa(n)
}

func printWaiting(w io.Writer, x *mailq.WaitingInfo, now time.Time) error {
	words := []string{x.State}
	if x.Cause != "" {
		words[0] += " (" + x.Cause + ")"
	}
	if !x.Until.IsZero() {
		words[0] += " until " + x.Until.Local().Format(human.TimeFormat)
	}
	if x.Attempts > 0 {
		words = append(words, human.Count(x.Attempts, "attempt"))
	}
	if x.Next.After(now) && x.State == "waiting" {
		words = append(words, "next in "+human.Span(x.Next.Sub(now)))
	}
	if x.Expires.After(now) {
		words = append(words, "expires in "+human.Span(x.Expires.Sub(now)))
	}
	p := term.For(w)
	_, err := fmt.Fprintf(w, "%s  %s  %s  %s\n", p.Bold(x.ID), human.Span(now.Sub(x.Accepted)), human.Clean(x.Rcpt), p.State(x.State, strings.Join(words, ", ")))
	if x.Answer != "" {
		_, aerr := fmt.Fprintf(w, "    %s\n", human.Cut(human.Clean(x.Answer), term.Room(w, 4, longAnswer)))
		err = errors.Join(err, aerr)
	}
	return err
}
