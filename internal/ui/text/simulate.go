package text

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"zmailer/internal/admin/simulate"
	"zmailer/internal/run/human"
	"zmailer/internal/ui/term"
)

// PrintSimulation writes a simulation as a table: the hosts that drain last first, at most
// rows of them, all if rows is 0.
func PrintSimulation(out io.Writer, r *simulate.Result, rows int) error {
	p := term.For(out)
	var b strings.Builder
	fmt.Fprintf(&b, "The queue at %s: %d messages, %d open recipients", r.Now.Format(time.RFC3339), r.Messages, r.Recipients)
	if r.EndingAtOnce > 0 {
		fmt.Fprintf(&b, "; %d end at once", r.EndingAtOnce)
	}
	if r.Aside > 0 {
		fmt.Fprintf(&b, "; %d wait for an operator, a condition or a clause and are left out", r.Aside)
	}
	b.WriteString(".\nAssumed:\n")
	for _, a := range r.Assumptions {
		fmt.Fprintf(&b, "  %s\n", a)
	}
	const most = 10
	for i, u := range r.Unread {
		if i == most {
			fmt.Fprintf(&b, "left out: %d more (--json)\n", len(r.Unread)-most)
			break
		}
		b.WriteString(p.Yellow("left out: " + u + "\n"))
	}
	if len(r.Courses[0].Hosts) > 0 {
		b.WriteString("\n")
		simulationTable(&b, r, rows, p)
	}
	for _, c := range r.Courses {
		which := "As it is"
		if c.Set != "" {
			which = "With " + strings.ReplaceAll(c.Set, "\n", "; ")
		}
		fmt.Fprintf(&b, "%s: %d delivered, %d expired, %d left; the last outcome after %s.\n", which, c.Delivered, c.Expired, c.Left, inSeconds(c.Ended))
	}
	if _, err := io.WriteString(out, b.String()); err != nil {
		return fmt.Errorf("print the simulation: %w", err)
	}
	return nil
}

// simulationTable has a line for each host, with the courses side by side.
func simulationTable(b *strings.Builder, r *simulate.Result, rows int, p term.Paint) {
	first := slices.Clone(r.Courses[0].Hosts)
	other := map[string]*simulate.Host{}
	if len(r.Courses) > 1 {
		for _, h := range r.Courses[1].Hosts {
			other[h.Host] = h
		}
	}
	order := func(h *simulate.Host) float64 {
		if h.Drained < 0 {
			return 1e18
		}
		return h.Drained
	}
	slices.SortStableFunc(first, func(a, b *simulate.Host) int {
		return cmp.Or(cmp.Compare(order(b), order(a)), cmp.Compare(b.Recipients, a.Recipients))
	})
	hidden := 0
	if rows > 0 && len(first) > rows {
		hidden = len(first) - rows
		first = first[:rows]
	}
	width := len("channel/host")
	for _, h := range first {
		width = max(width, len(h.Host))
	}
	heading := fmt.Sprintf("%-*s %10s %10s %8s %8s %12s", width, "channel/host", "recipients", "delivered", "expired", "left", "drained")
	if len(other) > 0 {
		heading += fmt.Sprintf("   | %10s %8s %8s %12s", "delivered", "expired", "left", "drained")
	}
	b.WriteString(p.Bold(heading) + "\n")
	for _, h := range first {
		fmt.Fprintf(b, "%-*s %10d%s", width, h.Host, h.Recipients, simulatedCells(h, p))
		if o := other[h.Host]; o != nil {
			b.WriteString("   |" + simulatedCells(o, p))
		}
		if h.Trouble != "" {
			b.WriteString("  " + p.Red(fmt.Sprintf("%.60s", h.Trouble)))
		}
		b.WriteString("\n")
	}
	if hidden > 0 {
		fmt.Fprintf(b, "and %d more, which drain sooner (--all)\n", hidden)
	}
	b.WriteString("\n")
}

// simulatedCells returns what becomes of the recipients of a host.
func simulatedCells(h *simulate.Host, p term.Paint) string {
	expired, left, drained := fmt.Sprintf("%8d", h.Expired), fmt.Sprintf("%8d", h.Left), fmt.Sprintf("%12s", drainedIn(h))
	if h.Expired > 0 {
		expired = p.Red(expired)
	}
	if h.Left > 0 {
		left = p.Yellow(left)
	}
	if h.Drained < 0 {
		drained = p.Yellow(drained)
	}
	return fmt.Sprintf(" %10d %s %s %s", h.Delivered, expired, left, drained)
}

func drainedIn(h *simulate.Host) string {
	if h.Drained < 0 {
		return "never"
	}
	return inSeconds(h.Drained)
}

func inSeconds(s float64) string { return human.Span(time.Duration(s * float64(time.Second))) }
