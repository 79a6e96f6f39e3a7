package text

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"zmailer/internal/admin/view"
	"zmailer/internal/postoffice/alarm"
	"zmailer/internal/run/human"
	"zmailer/internal/ui/term"
	"zmailer/internal/wire/mailq"
)

func PrintJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false) // addresses are written in < >
	return e.Encode(v)
}

func PrintOverview(w io.Writer, st *view.Overview, now time.Time) error {
	fmt.Fprintf(w, "postoffice %s\n\n", st.PostOffice)
	p, t := term.For(w), term.NewTable(w)
	fmt.Fprint(t, p.Heading("DIRECTORY\tFILES\tOLDEST\tSTATE\n"))
	for _, d := range st.Directories {
		first := d.Name + "\t" + strconv.Itoa(d.Files)
		if d.Problem != "" {
			fmt.Fprintf(t, "%s\t\t%s\n", first, p.Red(d.Problem))
			continue
		}
		if len(d.States) == 0 {
			fmt.Fprintf(t, "%s\t-\t-\n", first)
		}
		for _, g := range d.States {
			again := ""
			if g.Next != nil {
				again = ", routed again in " + human.Span(g.Next.Sub(now))
			}
			fmt.Fprintf(t, "%s\t%s\t%d %s%s\n", first, human.Span(time.Duration(g.OldestSeconds)*time.Second), g.Files, g.State, again)
			first = "\t"
		}
	}
	switch {
	case st.Counts != nil:
		printCounts(t, st.Counts)
	case st.Uncounted:
		fmt.Fprintln(t, "\nzmctl queue --counts counts the recipients")
	case len(st.Recipients) > 0:
		fmt.Fprint(t, "\n"+p.Heading("RECIPIENTS\tOLDEST\tSTATE\n"))
	}
	for _, r := range st.Recipients {
		fmt.Fprintf(t, "%d\t%s\t%s\n", r.Recipients, human.Span(time.Duration(r.OldestSeconds)*time.Second), p.State(r.State, r.State))
	}
	if len(st.Owners) > 0 {
		// A line without cells ends the columns of the table before it.
		fmt.Fprint(t, "\n"+p.Heading("OWNER\tRUNS\tPROCESS\n"))
	}
	for _, o := range st.Owners {
		runs := "yes"
		if !o.Alive {
			runs = p.Faint("ended") // the number is free when its claims are taken up
		}
		fmt.Fprintf(t, "%d\t%s\t%s\n", o.Number, runs, o.Says)
	}
	err := t.Flush()
	if !st.Scheduler {
		_, perr := fmt.Fprintln(w, "\n"+p.Red("no scheduler runs: nothing is delivered; zmctl start starts the daemons"))
		err = errors.Join(err, perr)
	}
	return err
}

// printCounts prints the scheduler's counts that are not numbers of files.
func printCounts(w io.Writer, c *mailq.StatusInfo) {
	fmt.Fprintf(w, "\nqueue and transport by the scheduler's counts: %d recipients for %d hosts", c.Recipients, c.Threads)
	if c.Refused > 0 {
		fmt.Fprintf(w, "; %d specifications that cannot be used are not among them", c.Refused)
	}
	if !c.Scanned {
		fmt.Fprint(w, "; it still reads what lay there when it started")
	}
	fmt.Fprintln(w, "\nzmctl check counts the files, zmctl queue --counts the recipients by state")
}

// PrintAlarms writes them as a table.
func PrintAlarms(w io.Writer, list []alarm.Alarm, now time.Time) error {
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
