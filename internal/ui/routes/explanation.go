package routes

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"

	"zmailer/internal/run/human"
	"zmailer/internal/stage/router/route"
	"zmailer/internal/stage/router/rules"
	"zmailer/internal/ui/term"
)

// PrintExplanation prints each step on a line, and below each recipient its targets.
func PrintExplanation(out io.Writer, e *route.Explanation) error {
	p := term.For(out)
	var b strings.Builder
	if e.ID != "" {
		fmt.Fprintf(&b, "%s  %s\n", p.Bold(e.ID), e.File)
	}
	for i := range e.Steps {
		s := &e.Steps[i]
		fmt.Fprintf(&b, "%s  %s\n", strings.TrimSpace(s.Table+"  "+s.Where), s.Result)
	}
	for _, r := range e.Recipients {
		fmt.Fprintf(&b, "\n%s\n", p.Bold(bracketed(r.Address)))
		printRecipient(&b, p, r)
	}
	if text := conclusion(e); text != "" {
		fmt.Fprintf(&b, "\n%s\n", colored(e, p, text))
	}
	_, err := io.WriteString(out, b.String())
	return err
}

// row is a step in columns: table, address, file:line, result.
type row [4]string

// printRecipient writes the steps of a recipient, each target where it was found.
func printRecipient(b *strings.Builder, p term.Paint, r *route.ExplainedRecipient) {
	rows := make([]row, len(r.Steps))
	var width [3]int
	for i := range r.Steps {
		s := &r.Steps[i]
		rows[i] = row{strings.Repeat("  ", s.Depth) + s.Table, s.Address, dash(s.Where), sentence(s)}
		for c := range width {
			width[c] = min(max(width[c], utf8.RuneCountInString(rows[i][c])), maxColumn)
		}
	}
	last := ""
	targets := r.Targets
	for i, cells := range rows {
		for len(targets) > 0 && targets[0].After <= i {
			printTarget(b, p, &targets[0], depth(r, i-1))
			targets, last = targets[1:], ""
		}
		if cells[1] == last {
			cells[1] = "" // as in the line above
		} else {
			last = cells[1]
		}
		b.WriteString("  ")
		for c := range width {
			fmt.Fprintf(b, "%s%*s", cells[c], 2+max(0, width[c]-utf8.RuneCountInString(cells[c])), "")
		}
		fmt.Fprintln(b, cells[3])
	}
	for i := range targets {
		printTarget(b, p, &targets[i], depth(r, min(targets[i].After, len(r.Steps))-1))
	}
	if n := r.MoreSteps; n > 0 {
		fmt.Fprintf(b, "  and %s more; --all shows them\n", human.Count(n, "step"))
	}
	if r.More > 0 {
		fmt.Fprintf(b, "  and %s more; --all shows them\n", human.Count(r.More, "target"))
	}
	switch {
	case r.Verdict == route.VerdictDeferred || r.Verdict == route.VerdictFrozen:
		fmt.Fprintf(b, "  => %s\n", p.State(r.Verdict, strings.ToUpper(r.Verdict)+": "+r.Reason))
	case len(r.Targets)+r.More == 0:
		fmt.Fprintln(b, "  => same as a recipient above: it gets one copy")
	}
}

// maxColumn is how wide a column gets for one long value. Characters.
const maxColumn = 50

func depth(r *route.ExplainedRecipient, i int) int {
	if i < 0 || i >= len(r.Steps) {
		return 0
	}
	return r.Steps[i].Depth
}

func sentence(s *route.Step) string {
	if s.Key != "" && s.Key != s.Address && s.Key != s.Where {
		return s.Key + " → " + s.Result
	}
	return s.Result
}

func printTarget(b *strings.Builder, p term.Paint, t *route.ExplainedTarget, depth int) {
	lead := "  " + strings.Repeat("  ", depth)
	host := t.Host
	if t.Channel == rules.Error {
		host, _, _ = strings.Cut(host, ":") // its text follows below
	}
	fmt.Fprintf(b, "%s=> %s  %s  %s", lead, p.Bold(t.Channel+"!"+host), t.User, privilege(t.Privilege))
	if t.Sender != "" {
		fmt.Fprintf(b, "  from <%s>", t.Sender)
		if t.VERP {
			b.WriteString(" with the member's address in it (VERP)")
		}
	}
	b.WriteByte('\n')
	s := t.Service
	if s == nil {
		return
	}
	text := s.Text
	switch {
	case !s.Served:
		text = p.Red("NOT SERVED: " + text)
	case s.Code != "":
		text = p.Red("REJECTED " + s.Code + ": " + text)
	case s.Clause != "":
		text = strings.TrimSuffix("served by "+s.Clause+" ("+s.Where+"); "+text, "; ")
	}
	fmt.Fprintf(b, "%s   %s\n", lead, text)
	if s.Suspended != "" {
		fmt.Fprintf(b, "%s   %s\n", lead, p.Yellow("SUSPENDED: it is queued and waits: "+s.Suspended))
	}
}

// colored returns the conclusion in red, unless the message has moved on.
func colored(e *route.Explanation, p term.Paint, text string) string {
	if e.Verdict == route.VerdictGone {
		return text
	}
	return p.Red(text)
}

// conclusion returns what happens to the message as a whole, where its recipients do not show
// it.
func conclusion(e *route.Explanation) string {
	switch e.Verdict {
	case route.VerdictDeferred:
		text := "The whole message would go to deferred/ (" + e.Why + ") and be routed again later"
		if n := len(e.Recipients); n > 0 && e.Recipients[n-1].Reason == e.Reason {
			return text + "."
		}
		return text + ": " + e.Reason
	case route.VerdictFrozen:
		return "The message would go to freezer/ (" + e.Why + ") and wait for an operator: " + e.Reason
	case route.VerdictSetAside:
		return "The message would go to postman/, and nowhere else: " + e.Reason
	case route.VerdictGone:
		return "There is no such file: the message has moved on."
	case route.VerdictUnreadable:
		return "Unknown: " + e.Reason
	}
	return ""
}

// bracketed returns an address in angle brackets.
func bracketed(addr string) string {
	if strings.HasPrefix(addr, "<") {
		return addr
	}
	return "<" + addr + ">"
}

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func privilege(uid uint32) string {
	if uid == rules.Nobody {
		return "as nobody"
	}
	return "as uid " + strconv.FormatUint(uint64(uid), 10)
}
