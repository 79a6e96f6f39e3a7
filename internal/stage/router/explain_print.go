package router

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"

	"zmailer/internal/stage/router/rules"
	"zmailer/internal/ui/term"
)

// Print writes an explanation for people: what was asked, line by line, and under each
// recipient where it goes.
func (e *Explanation) Print(out io.Writer) error {
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
		r.print(&b, p)
	}
	if text := e.conclusion(); text != "" {
		fmt.Fprintf(&b, "\n%s\n", e.painted(p, text))
	}
	_, err := io.WriteString(out, b.String())
	return err
}

// row is a step in columns: table, address, file:line, result.
type row [4]string

// print writes the steps of a recipient, each target where it was found.
func (r *ExplainedRecipient) print(b *strings.Builder, p term.Paint) {
	rows := make([]row, len(r.Steps))
	var width [3]int
	for i := range r.Steps {
		s := &r.Steps[i]
		rows[i] = row{strings.Repeat("  ", s.Depth) + s.Table, s.Address, dash(s.Where), s.sentence()}
		for c := range width {
			width[c] = min(max(width[c], utf8.RuneCountInString(rows[i][c])), maxColumn)
		}
	}
	last := ""
	targets := r.Targets
	for i, cells := range rows {
		for len(targets) > 0 && targets[0].After <= i {
			targets[0].print(b, p, r.depth(i-1))
			targets, last = targets[1:], ""
		}
		if cells[1] == last {
			cells[1] = "" // it stands above
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
		targets[i].print(b, p, r.depth(min(targets[i].After, len(r.Steps))-1))
	}
	if n := r.moreSteps; n > 0 {
		fmt.Fprintf(b, "  and %s more; --all shows them\n", plural(n, "step"))
	}
	if r.More > 0 {
		fmt.Fprintf(b, "  and %s more; --all shows them\n", plural(r.More, "target"))
	}
	switch {
	case r.Verdict == VerdictDeferred || r.Verdict == VerdictFrozen:
		fmt.Fprintf(b, "  => %s\n", p.State(r.Verdict, strings.ToUpper(r.Verdict)+": "+r.Reason))
	case len(r.Targets)+r.More == 0:
		fmt.Fprintln(b, "  => where a recipient above goes: it is delivered there once")
	}
}

// maxColumn is how wide a column gets for one long value. Characters.
const maxColumn = 50

// depth is that of a step.
func (r *ExplainedRecipient) depth(i int) int {
	if i < 0 || i >= len(r.Steps) {
		return 0
	}
	return r.Steps[i].Depth
}

func (s *ExplainedStep) sentence() string {
	if s.Key != "" && s.Key != s.Address && s.Key != s.Where {
		return s.Key + " → " + s.Result
	}
	return s.Result
}

func (t *ExplainedTarget) print(b *strings.Builder, p term.Paint, depth int) {
	lead := "  " + strings.Repeat("  ", depth)
	host := t.Host
	if t.Channel == rules.Error {
		host, _, _ = strings.Cut(host, ":") // its text is told below
	}
	fmt.Fprintf(b, "%s=> %s  %s  %s", lead, p.Bold(t.Channel+"!"+host), t.User, privilege(t.Privilege))
	if t.Sender != "" {
		fmt.Fprintf(b, "  from <%s>", t.Sender)
		if t.VERP {
			b.WriteString(" with each recipient in it")
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
}

// painted colours the conclusion: all but a message that has moved on needs a person.
func (e *Explanation) painted(p term.Paint, text string) string {
	if e.Verdict == VerdictGone {
		return text
	}
	return p.Red(text)
}

// conclusion is what becomes of the message as a whole, where that is not plain from its
// recipients.
func (e *Explanation) conclusion() string {
	switch e.Verdict {
	case VerdictDeferred:
		text := "The whole message would go to deferred/ (" + e.Why + ") and be routed again later"
		if n := len(e.Recipients); n > 0 && e.Recipients[n-1].Reason == e.Reason {
			return text + "."
		}
		return text + ": " + e.Reason
	case VerdictFrozen:
		return "The message would go to freezer/ (" + e.Why + ") and wait for a person: " + e.Reason
	case VerdictSetAside:
		return "The message would go to postman/, and nowhere else: " + e.Reason
	case VerdictGone:
		return "There is no such file: the message has moved on."
	case VerdictUnreadable:
		return "Nothing can be told: " + e.Reason
	}
	return ""
}

// bracketed is an address as people gave it.
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

// privilege is a uid for people.
func privilege(uid uint32) string {
	if uid == rules.Nobody {
		return "as nobody"
	}
	return "as uid " + strconv.FormatUint(uint64(uid), 10)
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return strconv.Itoa(n) + " " + what + "s"
}
