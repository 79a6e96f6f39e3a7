// Package routes prints for operators what package whatif found: the explanation of one
// address or message, and the comparison of all queued mail with another configuration.
// It owns nothing on disk.
//
// Diagnostics: an error is that of the writer.
package routes

import (
	"fmt"
	"io"
	"strings"

	"zmailer/internal/admin/view"
	"zmailer/internal/admin/whatif"
	"zmailer/internal/run/human"
	"zmailer/internal/ui/term"
)

// heading returns what the groups of a kind have in common.
func heading(kind string) string {
	switch kind {
	case whatif.Fail:
		return "would fail: the sender gets a report"
	case whatif.Aside:
		return "would be set aside in postman/"
	case whatif.Freeze:
		return "would be frozen until an operator thaws them"
	case whatif.Defer:
		return "would wait in deferred/ because a lookup fails"
	case whatif.Drop:
		return "would not get the message any more"
	case whatif.Add:
		return "would get the message in addition"
	case whatif.Expand:
		return "would be replaced: an alias, list or .forward leads elsewhere"
	case whatif.Move:
		return "would take another route"
	case whatif.Act:
		return "would be delivered with another privilege"
	case whatif.Report:
		return "would have another sender for reports"
	case whatif.Work:
		return "would be delivered"
	}
	return "unknown"
}

// stateOf returns the state of recipients of a kind; it colours the heading.
func stateOf(kind string) string {
	switch kind {
	case whatif.Fail, whatif.Drop:
		return view.Failed
	case whatif.Aside, whatif.Freeze, whatif.Unknown:
		return view.Frozen
	case whatif.Defer:
		return view.Waiting
	case whatif.Work:
		return view.Delivered
	}
	return ""
}

// shownGroups is how many groups of a kind are printed unless all are wanted.
const shownGroups = 20

// PrintComparison prints what another configuration would change; with all, every group.
func PrintComparison(w io.Writer, s *whatif.Comparison, all bool) error {
	p := term.For(w)
	var b strings.Builder
	fmt.Fprintf(&b, "%s with %s: %d unchanged, %d would differ", human.Count(s.Messages, "message"), human.Count(s.Recipients, "open recipient"), s.Same, s.Differ)
	if s.Already > 0 {
		fmt.Fprintf(&b, ", %d differ by the present configuration as well", s.Already)
	}
	b.WriteString("\n")
	if s.Moved > 0 {
		fmt.Fprintf(&b, "%s moved on meanwhile\n", human.Count(s.Moved, "message"))
	}
	if s.Unread > 0 {
		b.WriteString(p.Red(human.Count(s.Unread, "message") + " could not be read; zmctl check lists them\n"))
	}
	kind, already, printed, left := "", false, 0, 0
	more := func() {
		if left > 0 {
			fmt.Fprintf(&b, "  and %s; --all shows them\n", human.Count(left, "more group"))
		}
		printed, left = 0, 0
	}
	for _, g := range s.Groups {
		if g.Kind != kind || g.Already != already {
			more()
			if g.Already && !already {
				b.WriteString("\nBy the present configuration as well: it has changed since they were routed, or they were rerouted\n")
			}
			fmt.Fprintf(&b, "\n%s\n", p.State(stateOf(g.Kind), heading(g.Kind)))
			kind, already = g.Kind, g.Already
		}
		if printed >= shownGroups && !all {
			left++
			continue
		}
		printed++
		printGroup(&b, p, g)
	}
	more()
	_, err := io.WriteString(w, b.String())
	return err
}

func printGroup(b *strings.Builder, p term.Paint, g *whatif.Group) {
	in := ""
	if g.Dir != "" {
		in = " in " + g.Dir + "/"
	}
	of := ""
	if g.Of != "" {
		of = "<" + g.Of + ">: "
	}
	fmt.Fprintf(b, "  %s%s → %s   %s in %s%s\n", of, g.From, g.To, human.Count(g.Recipients, "recipient"), human.Count(g.Messages, "message"), in)
	if g.NotServed != "" {
		fmt.Fprintf(b, "    %s\n", p.Red("NOT SERVED: "+g.NotServed))
	}
	var parts []string
	left := g.More
	for i, d := range g.Domains {
		if i >= shownDomains {
			left += d.Recipients
			continue
		}
		parts = append(parts, fmt.Sprintf("%s %d", human.Clean(d.Domain), d.Recipients))
	}
	if left > 0 {
		parts = append(parts, fmt.Sprintf("other domains %d", left))
	}
	fmt.Fprintf(b, "    %s\n", strings.Join(parts, ", "))
	for _, e := range g.Examples {
		fmt.Fprintf(b, "    %s  <%s>", p.Bold(e.ID), e.Address)
		if e.Detail != "" {
			fmt.Fprintf(b, "  %s", e.Detail)
		}
		b.WriteByte('\n')
	}
}

// shownDomains is how many domains of a group are named.
const shownDomains = 5
