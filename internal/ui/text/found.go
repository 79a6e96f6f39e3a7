package text

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"time"

	"zmailer/internal/admin/view"
	"zmailer/internal/run/human"
	"zmailer/internal/ui/term"
)

// PrintFound prints a line for each recipient of the messages that a search has found.
func PrintFound(w io.Writer, found *view.Found, q *view.Search) {
	p, t := term.For(w), term.NewTable(w)
	fmt.Fprint(t, p.Heading("ACCEPTED\tID\tFROM\tTO\tOUTCOME\tSERVER\tREPLY\n"))
	for _, l := range found.Lives {
		from := "<" + human.Clean(l.From) + ">"
		if !l.HasFrom {
			from = "(not known)"
		}
		head := p.Faint(l.Accepted.Local().Format(time.DateTime)) + "\t" + l.ID + "\t" + from
		for _, row := range q.Rows(l, shownRecipients) {
			r := row.Recipient
			if r == nil {
				fmt.Fprintf(t, "%s\t%s\t%s\t-\t\n", head, human.Count(row.Others, "recipient"), cmp.Or(l.State, "-"))
				continue
			}
			to := "<" + human.Clean(r.Address) + ">"
			if r.Original != "" {
				to = "<" + human.Clean(r.Original) + "> as " + to
			}
			fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\n", head, to, p.State(r.State, strings.TrimSpace(r.State+" "+human.Clean(r.Status))),
				cmp.Or(human.Clean(r.Relay), "-"), human.Cut(human.Clean(view.OneLine(r.Last)), 120))
		}
	}
	for i := range found.Refused {
		r := &found.Refused[i]
		to := "-"
		if rcpt := r.Get("rcpt"); rcpt != "" {
			to = "<" + human.Clean(strings.ReplaceAll(rcpt, ",", ">, <")) + ">"
		}
		fmt.Fprintf(t, "%s\t-\t<%s>\t%s\t%s\t-\t%s\n", p.Faint(r.Time.Local().Format(time.DateTime)), human.Clean(r.Get("from")), to,
			p.State("failed", "refused "+human.Clean(r.Get("status"))),
			human.Cut(human.Clean(view.OneLine(r.Get("code")+" "+r.Get("reply")+" ("+r.Get("client")+", "+cmp.Or(r.Get("by"), r.Get("stage"))+")")), 160))
	}
	_ = t.Flush() // see PrintLife
	if found.More > 0 {
		fmt.Fprintf(w, "Older messages were left out; --since, --until and --limit choose others.\n")
	}
	if found.Unsearched {
		fmt.Fprintf(w, "The queue is too long to be searched here; zmctl queue --from, --to and --message-id search all of it.\n")
	}
}
