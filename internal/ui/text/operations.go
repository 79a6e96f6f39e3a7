package text

import (
	"fmt"
	"io"
	"strings"
	"time"

	"zmailer/internal/admin/act"
	"zmailer/internal/admin/view"
	"zmailer/internal/run/human"
	"zmailer/internal/ui/term"
)

// PrintOperation prints an operation of the log in two lines.
func PrintOperation(w io.Writer, o *act.Operation, now time.Time) {
	p := term.For(w)
	text := o.Verb
	if o.Flags != "" {
		text += " " + o.Flags
	}
	if o.Until != "" {
		text += " until " + o.Until
	}
	if o.OfMessages() {
		text += "  " + human.Count(o.Messages, "message")
	}
	switch {
	case o.Undone != "":
		text += "  undone " + o.Undone
	case !o.Undoable():
		text += "  cannot be undone"
	}
	fmt.Fprintf(w, "%s  %s ago by %s  %s\n    %s", p.Bold(string(o.ID)), human.Span(now.Sub(o.Time)), o.Who, text, human.Cut(o.Selector, 300))
	if o.Reason != "" {
		fmt.Fprintf(w, ", %q", o.Reason)
	}
	fmt.Fprintln(w)
}

func FirstAddresses(list []view.Recipient) string {
	var b strings.Builder
	for i := range list {
		if i == 3 {
			fmt.Fprintf(&b, " and %d more", len(list)-i)
			break
		}
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString("<" + list[i].Address + ">")
	}
	return b.String()
}
