package text

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"zmailer/internal/admin/view"
	"zmailer/internal/run/human"
	"zmailer/internal/ui/term"
)

// tree is the view --tree: channel and host, below them messages.
type tree struct {
	*view.Tree
	w    io.Writer
	now  time.Time
	json bool
}

// NewTree prints the top hosts with as many messages of each.
func NewTree(w io.Writer, now time.Time, top int, asJSON bool) QueueView {
	return &tree{view.NewTree(now, top), w, now, asJSON}
}

func (t *tree) End(bool) error {
	list, more := t.Branches()
	if t.json {
		return PrintJSON(t.w, list)
	}
	var errs []error
	p := term.For(t.w)
	say := func(format string, args ...any) {
		_, err := fmt.Fprintf(t.w, format, args...)
		errs = append(errs, err)
	}
	for _, v := range list {
		say("%s  %s, %s, %s, oldest %s\n", p.Bold(v.Name), human.Count(v.Recipients, "recipient"), human.Count(v.Messages, "message"), human.Size(v.Bytes),
			human.Span(time.Duration(v.OldestSeconds)*time.Second))
		for _, l := range v.Oldest {
			more := ""
			if n := l.Count - len(l.Recipients); n > 0 {
				more = fmt.Sprintf(" and %d more", n)
			}
			id := l.ID
			if id == "" {
				id = "(gone)"
			}
			say("    %s  %s  %s  %s -> %s%s\n        %s\n", p.Bold(id), human.Span(t.now.Sub(l.Since)), human.Size(l.Size), l.Sender, strings.Join(l.Recipients, ", "), more, p.State(l.First, l.Next))
			if l.Last != "" {
				say("        %s\n", human.Cut(l.Last, term.Room(t.w, 8, longAnswer)))
			}
		}
		if n := v.Messages - len(v.Oldest); n > 0 {
			say("    and %s\n", human.Count(n, "younger message"))
		}
	}
	if more > 0 {
		say("and %s\n", human.Count(more, "more host"))
	}
	say("%s\n", human.Count(t.Messages, "message"))
	return errors.Join(errs...)
}

// summary is the view --summary.
type summary struct {
	*view.Summary
	w    io.Writer
	json bool
}

// NewSummary prints the totals.
func NewSummary(w io.Writer, asJSON bool) QueueView {
	return &summary{view.NewSummary(), w, asJSON}
}

func (s *summary) End(bool) error {
	if s.json {
		return PrintJSON(s.w, s.Summary)
	}
	p := term.For(s.w)
	text := fmt.Sprintf("%s, %s, %s to %s, %s\n", human.Count(s.Messages, "message"), human.Size(s.Bytes),
		human.Count(s.Recipients, "open recipient"), human.Count(s.Hosts, "host"), s.states(p))
	if s.Messages > 0 {
		text += fmt.Sprintf("oldest %s: %s\n", human.Span(time.Duration(s.OldestAge)*time.Second), p.Bold(s.Oldest))
	}
	if v := s.Largest(); v != nil {
		text += fmt.Sprintf("most to %s: %s\n", p.Bold(v.Name), human.Count(v.Recipients, "recipient"))
	}
	if s.Problems > 0 {
		text += p.Red(human.Count(s.Problems, "message") + " with a problem; see zmctl check\n")
	}
	_, err := io.WriteString(s.w, text)
	return err
}

func (s *summary) states(p term.Paint) string {
	var list []string
	for _, name := range []string{view.ToRoute, view.Waiting, view.Delivering, view.Stale, view.Suspended, view.Held, view.Frozen, view.Unserved, view.Delivered, view.Failed, view.Removed, view.Rerouted} {
		if n := s.States[name]; n > 0 {
			list = append(list, p.State(name, fmt.Sprintf("%d %s", n, name)))
		}
	}
	if len(list) == 0 {
		return "nothing waits"
	}
	return strings.Join(list, ", ")
}
