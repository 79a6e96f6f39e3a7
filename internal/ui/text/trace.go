package text

import (
	"fmt"
	"io"
	"strings"
	"time"

	"zmailer/internal/admin/trace"
	"zmailer/internal/admin/view"
	"zmailer/internal/run/human"
	"zmailer/internal/ui/term"
)

// shownSteps and shownRecipients are how many of each are printed; --json has all.
const (
	shownSteps      = 500
	shownRecipients = 100
)

// traceTime is a time of a step.
const traceTime = "2006-01-02 15:04:05.000"

// PrintLife prints a life; each line begins with indent. Trouble of the writer is met
// when it is flushed.
func PrintLife(w io.Writer, l *trace.Life, indent string) {
	line := func(format string, args ...any) { fmt.Fprintf(w, indent+format+"\n", args...) }
	from := "<" + human.Clean(l.From) + ">"
	if !l.HasFrom {
		from = "(not known)"
	}
	p := term.For(w)
	head := p.Bold(l.ID) + " from " + from
	if l.Size != "" {
		head += ", " + l.Size + " bytes"
	}
	line("%s, accepted %s; %s", head, l.Accepted.Local().Format(traceTime), traceEnd(l))
	if o := l.Origin; o != nil && o.Kind == "copy" {
		line("It is a copy of %s for recipients that are routed again.", human.Clean(o.ID))
	} else if o != nil && o.Kind == trace.Filtered {
		line("It is %s after the content filter.", human.Clean(o.ID))
	} else if o != nil {
		line("It is a report (%s) on %s.", human.Clean(o.Kind), human.Clean(o.ID))
	}
	fmt.Fprintln(w)
	printLifeSteps(w, l, indent)
	if len(l.Recipients) > 0 {
		fmt.Fprintln(w)
		printOutcomes(w, l, indent)
	}
	if l.Untold > 0 {
		line("and %s without an attempt so far", human.Count(l.Untold, "recipient"))
	}
	for i := range l.Caused {
		c := &l.Caused[i]
		fmt.Fprintln(w)
		if c.Kind == trace.Filtered && c.Life != nil {
			line("The content filter gave it back as another message:")
			PrintLife(w, c.Life, indent+"    ")
			continue
		}
		what := "a report (" + human.Clean(c.Kind) + ")"
		switch c.Kind {
		case trace.Filtered:
			what = "what the content filter gave back"
		case "copy":
			what = "a copy for recipients that are routed again"
		}
		if c.Life == nil {
			line("It caused %s, %s, of which nothing is known.", what, human.Clean(c.ID))
			continue
		}
		line("It caused %s:", what)
		PrintLife(w, c.Life, indent+"    ")
	}
}

// traceEnd describes where a message is, or how long it took.
func traceEnd(l *trace.Life) string {
	sources := "sources: " + strings.Join(l.Told, ", ")
	switch {
	case l.State != "" && l.State != "gone":
		return "it is " + l.State + "; " + sources
	case l.Ended.IsZero() && l.State == "":
		return "no end is known; " + sources
	case l.Ended.IsZero():
		return "gone; " + sources
	}
	return "gone after " + lapse(l.Ended.Sub(l.Accepted)) + "; " + sources
}

func printLifeSteps(w io.Writer, l *trace.Life, indent string) {
	p, t := term.For(w), term.NewTable(w)
	fmt.Fprint(t, indent+p.Heading("TIME\tAFTER\tBY\tWHAT\n"))
	last := l.Accepted
	groups := l.Groups()
	for i := range groups {
		if i == shownSteps {
			fmt.Fprintf(t, "%sand %s more; --json has them\n", indent, human.Count(len(groups)-i, "step"))
			break
		}
		s := &groups[i]
		after, by := "-", s.Program
		if i > 0 {
			after = lapse(s.Time.Sub(last))
		}
		if by == "" {
			by = s.Told[0]
		}
		last = s.Time
		text := human.Clean(view.OneLine(s.Text))
		if n := len(s.Recipients) - 1; n > 0 {
			text += fmt.Sprintf(" (the same for %s more)", human.Count(n, "recipient"))
		}
		fmt.Fprintf(t, "%s%s\t%s\t%s\t%s\n", indent, p.Faint(s.Time.Local().Format(traceTime)), after, human.Clean(by), p.State(s.Event, text))
	}
	_ = t.Flush() // see printLife
}

// printOutcomes prints each recipient and how its time was spent.
func printOutcomes(w io.Writer, l *trace.Life, indent string) {
	p, t := term.For(w), term.NewTable(w)
	fmt.Fprint(t, indent+p.Heading("RECIPIENT\tOUTCOME\tTRIES\tROUTING\tQUEUE\tDELIVERY\tWAITED\tTOOK\n"))
	for i := range l.Recipients {
		if i == shownRecipients {
			fmt.Fprintf(t, "%sand %s more; --json has them\n", indent, human.Count(len(l.Recipients)-i, "recipient"))
			break
		}
		r := &l.Recipients[i]
		times := [4]string{"-", "-", "-", "-"}
		if r.Timed() {
			for k, d := range []time.Duration{r.Routing, r.Queue, r.Delivery, r.Waited} {
				times[k] = lapse(d)
			}
		}
		fmt.Fprintf(t, "%s%s\t%s\t%d\t%s\t%s\n", indent, human.Clean(r.Address), p.State(r.State, strings.TrimSpace(r.State+" "+human.Clean(r.Status))), r.Attempts,
			strings.Join(times[:], "\t"), lapse(r.Took))
	}
	_ = t.Flush() // see printLife
}

// lapse returns a time that passed, short and to three digits: "211µs", "4.2ms", "1.05s",
// "3m".
func lapse(d time.Duration) string {
	switch {
	case d < 0:
		return "-" + lapse(-d)
	case d >= time.Minute:
		return human.Span(d)
	case d >= 100*time.Millisecond:
		return d.Round(10 * time.Millisecond).String()
	case d >= time.Millisecond:
		return d.Round(100 * time.Microsecond).String()
	}
	return d.Round(time.Microsecond).String()
}
