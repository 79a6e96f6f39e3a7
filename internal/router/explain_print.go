package router

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"

	"zmailer/internal/router/rules"
)

// Print writes an explanation for people: what was asked, line by line, and under each
// recipient where it goes.
func (e *Explanation) Print(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.StripEscape)
	if e.ID != "" {
		fmt.Fprintf(w, "%s  %s\n", e.ID, e.File)
	} else if e.File != "" {
		fmt.Fprintln(w, e.File)
	}
	for i := range e.Steps {
		s := &e.Steps[i]
		fmt.Fprintf(w, "%s  %s  %s\n", s.Table, s.Where, s.Result)
	}
	for _, r := range e.Recipients {
		fmt.Fprintf(w, "\n<%s>\n", r.Address)
		r.print(w)
		if err := w.Flush(); err != nil {
			return err
		}
	}
	if text := e.conclusion(); text != "" {
		if len(e.Recipients) > 0 {
			fmt.Fprintln(w)
		}
		fmt.Fprintln(w, text)
	}
	return w.Flush()
}

// print writes the steps of a recipient, each target where it was found.
func (r *ExplainedRecipient) print(w io.Writer) {
	targets := r.Targets
	for i := range r.Steps {
		for len(targets) > 0 && targets[0].After <= i {
			targets[0].print(w, r.depth(i-1))
			targets = targets[1:]
		}
		s := &r.Steps[i]
		fmt.Fprintf(w, "  %s%s\t%s\t%s\t%s\n", strings.Repeat("  ", s.Depth), s.Table, s.Address, dash(s.Where), s.sentence())
	}
	for i := range targets {
		targets[i].print(w, r.depth(min(targets[i].After, len(r.Steps))-1))
	}
	if n := r.moreSteps; n > 0 {
		fmt.Fprintf(w, "  and %s more; --all shows them\n", plural(n, "step"))
	}
	if r.More > 0 {
		fmt.Fprintf(w, "  and %s more; --all shows them\n", plural(r.More, "target"))
	}
	switch {
	case r.Verdict == VerdictDeferred:
		fmt.Fprintf(w, "  => DEFERRED: %s\n", r.Reason)
	case len(r.Targets)+r.More == 0:
		fmt.Fprintln(w, "  => where a recipient above goes; it is delivered once")
	}
}

// depth is that of a step.
func (r *ExplainedRecipient) depth(i int) int {
	if i < 0 || i >= len(r.Steps) {
		return 0
	}
	return r.Steps[i].Depth
}

func (s *ExplainedStep) sentence() string {
	if s.Key != "" && s.Key != s.Address {
		return s.Key + " → " + s.Result
	}
	return s.Result
}

func (t *ExplainedTarget) print(w io.Writer, depth int) {
	fmt.Fprintf(w, "  %s=> %s!%s  %s  %s", strings.Repeat("  ", depth), t.Channel, t.Host, t.User, privilege(t.Privilege))
	if t.Sender != "" {
		fmt.Fprintf(w, "  reports to <%s>", t.Sender)
		if t.VERP {
			fmt.Fprint(w, ", each from an address of its own")
		}
	}
	fmt.Fprintln(w)
	if s := t.Service; s != nil {
		lead := strings.Repeat("  ", depth) + "     "
		switch {
		case !s.Served:
			fmt.Fprintf(w, "%sNOT SERVED: %s\n", lead, s.Text)
		case s.Code != "":
			fmt.Fprintf(w, "%sREJECTED %s: %s\n", lead, s.Code, s.Text)
		case s.Clause != "":
			fmt.Fprintf(w, "%sby %s, %s; %s\n", lead, s.Clause, s.Where, s.Text)
		default:
			fmt.Fprintf(w, "%s%s\n", lead, s.Text)
		}
	}
}

// conclusion is what becomes of the message as a whole, where that is not plain from its
// recipients.
func (e *Explanation) conclusion() string {
	switch e.Verdict {
	case VerdictDeferred:
		return "The whole message would go to deferred/ (" + e.Why + ") and wait for zmctl resubmit: " + e.Reason
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
