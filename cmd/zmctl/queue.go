package main

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/urfave/cli/v2"
)

func queueCommand() *cli.Command {
	return &cli.Command{
		Name:      "queue",
		Usage:     "list the messages that wait, with each recipient and its last answer",
		UsageText: "zmctl queue [--json]",
		Description: `Lists every message that is not yet delivered, oldest first: those in router/ and
queue/, those that were set aside in deferred/ and freezer/, and the only copies in
postman/. For each recipient it tells the channel and host, how often it was tried,
when it is tried next, and what the other side said last.

    S10117782A2CnLkQ0vB8C  12m  4.1k  <sender@client.example.net>  queued
        smtp/c.example.com  defer1@c.example.com  waiting, 2 attempts, next in 1m:
            451 4.3.0 try again later
        smtp/c.example.com  ok@c.example.com  delivered

zmctl show ID tells everything about one of them.`,
		Flags:  []cli.Flag{&cli.BoolFlag{Name: "json", Usage: "print a JSON array"}},
		Action: runQueue,
	}
}

func runQueue(c *cli.Context) error {
	if err := noArguments(c); err != nil {
		return err
	}
	po, _, err := open(c)
	if err != nil {
		return err
	}
	defer closeFS(po)
	s := newSpool(po, time.Now())
	all, err := s.messages()
	if c.Bool("json") {
		if all == nil {
			all = []*message{}
		}
		return errors.Join(err, printJSON(c.App.Writer, all))
	}
	for _, m := range all {
		m.print(c.App.Writer, s.now)
	}
	_, perr := fmt.Fprintln(c.App.Writer, count(len(all), "message"))
	return errors.Join(err, perr)
}

// print writes a message's lines for the queue listing.
func (m *message) print(w io.Writer, now time.Time) {
	id := m.ID
	if id == "" {
		id = m.Name + " (its message file is gone)"
	}
	state := m.State
	if m.Why != "" {
		state += ": " + m.Why
	}
	if m.Owner != nil {
		state += " by " + m.Owner.String()
	}
	fmt.Fprintf(w, "%s  %s  %s  %s  %s\n", id, span(now.Sub(m.Since)), size(m.Size), m.sender(), state)
	if m.Problem != "" {
		fmt.Fprintf(w, "    PROBLEM: %s\n", clean(m.Problem))
	}
	for i := range m.Recipients {
		r := &m.Recipients[i]
		text := r.words(now)
		if r.Last == "" {
			fmt.Fprintf(w, "    %s%s  %s\n", r.thread(), r.Address, text)
			continue
		}
		fmt.Fprintf(w, "    %s%s  %s:\n        %s\n", r.thread(), r.Address, text, cut(r.Last, 300))
	}
}

// thread is channel and host as the scheduler groups them, with two blanks behind.
func (r *recipient) thread() string {
	if r.Channel == "" {
		return ""
	}
	return r.Channel + "/" + r.Host + "  "
}

// words tells the state of a recipient.
func (r *recipient) words(now time.Time) string {
	words := []string{r.State}
	if r.Held != "" {
		words[0] += " (" + r.Held + ")"
	}
	if r.Owner != nil {
		words[0] += " (" + r.Owner.String() + ")"
	}
	if r.Attempts > 0 {
		words = append(words, count(r.Attempts, "attempt"))
	}
	switch {
	case r.Next == nil || !r.open():
	case r.Next.After(now):
		words = append(words, "next in "+span(r.Next.Sub(now)))
	default:
		words = append(words, "due for "+span(now.Sub(*r.Next)))
	}
	if r.State == failed && r.Reported {
		words = append(words, "sender was told")
	}
	if r.Status != "" {
		words = append(words, "status "+r.Status)
	}
	return strings.Join(words, ", ")
}
