package main

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"zmailer/internal/postoffice/alarm"
	"zmailer/internal/run/human"
	"zmailer/internal/ui/term"
)

// printAlarms writes them as a table.
func printAlarms(w io.Writer, list []alarm.Alarm, now time.Time) error {
	if len(list) == 0 {
		return nil
	}
	var b strings.Builder
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "ALARM\tWHERE\tFOR\tWHAT")
	for _, a := range list {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", a.Kind, human.Clean(a.Subject), human.Span(now.Sub(a.Since)), human.Clean(strings.TrimSpace(a.Text)))
	}
	err := t.Flush()
	_, werr := fmt.Fprint(w, "\n"+term.For(w).Red(b.String()))
	return errors.Join(err, werr)
}
