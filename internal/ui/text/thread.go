package text

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"zmailer/internal/admin/view"
	"zmailer/internal/run/human"
	"zmailer/internal/ui/term"
	"zmailer/internal/wire/mailq"
)

func PrintThread(w io.Writer, t *mailq.ThreadInfo) error {
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

func PrintWaiting(w io.Writer, x *mailq.WaitingInfo, now time.Time) error {
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

// PrintThreads writes threads as a table.
func PrintThreads(w io.Writer, list []mailq.ThreadInfo) error {
	p, t := term.For(w), term.NewTable(w)
	trouble := 60
	if t.Width = term.Width(w); t.Width > 0 {
		trouble = t.Width // the table cuts it
	}
	fmt.Fprint(t, p.Heading("THREAD\tSTATE\tN\tR\tRUN\tTRIED\tWAIT\tOLDEST\tTROUBLE\n"))
	recipients := 0
	for i := range list {
		x := &list[i]
		recipients += x.Recipients
		fmt.Fprintf(t, "%s\t%s\t%d\t%d\t%s\t%d\t%s\t%s\t%s\n", p.Bold(human.Clean(x.Channel)+"/"+human.Clean(x.Host)), p.State(x.State, x.State), x.Messages, x.Recipients, view.Places(x),
			x.Attempts, view.Wait(x), human.Span(time.Duration(x.OldestSeconds)*time.Second), human.Cut(human.Clean(x.Trouble), trouble))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "%s, %s\n", human.Count(len(list), "thread"), human.Count(recipients, "recipient"))
	return err
}
