package text

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"zmailer/internal/admin/service"
	"zmailer/internal/run/human"
	"zmailer/internal/run/supervise"
	"zmailer/internal/ui/term"
)

// PrintService writes the daemons as a table.
func PrintService(w io.Writer, v *service.Status, now time.Time) error {
	var b strings.Builder
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "DAEMON\tRUNS\tPID\tSINCE\t")
	for i := range v.Daemons {
		st := &v.Daemons[i]
		runs, pid, since := "no", "-", "-"
		if st.Runs {
			runs, pid = "yes", fmt.Sprint(st.Pid)
		}
		if st.Since != nil {
			since = human.Span(now.Sub(*st.Since))
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\n", st.Daemon, runs, pid, since, human.Clean(daemonNote(st)))
	}
	err := t.Flush()
	p := term.For(w)
	for line := range strings.Lines(b.String()) {
		if f := strings.Fields(line); len(f) > 1 && f[1] == "no" {
			line = p.Red(line)
		}
		_, werr := io.WriteString(w, strings.TrimRight(line, " \n")+"\n")
		err = errors.Join(err, werr)
	}
	by := v.By
	if v.Pid > 0 {
		by += fmt.Sprintf(", pid %d", v.Pid)
	}
	if v.Log != "" {
		by += "; log: " + v.Log
	}
	_, werr := fmt.Fprintln(w, "run by "+by)
	return errors.Join(err, werr)
}

// daemonNote returns what an operator should know about a daemon.
func daemonNote(st *supervise.State) string {
	name := st.Daemon
	if name == service.Agents { // it starts and stops with the scheduler
		name = "scheduler"
	}
	switch {
	case st.Runs && st.Replaced:
		return "its program was replaced since: zmctl restart " + name
	case st.Runs && !st.Ready:
		return "starting"
	case st.Runs && st.Starts > 1:
		return fmt.Sprintf("started %s; it had ended: %s", human.Often(st.Starts), st.Last)
	case st.Runs:
		return ""
	case st.Stopped:
		return "stopped: zmctl start " + name
	case st.Last != "":
		return "ended: " + st.Last
	}
	return "not started"
}
