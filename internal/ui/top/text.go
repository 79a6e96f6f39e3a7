package top

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"zmailer/internal/run/human"
)

// Span returns a time in words that fit a column: "4s", "12m", "1h20m", "3d4h".
func Span(seconds int64) string {
	two := func(a int64, x string, b int64, y string) string {
		if b == 0 {
			return strconv.FormatInt(a, 10) + x
		}
		return strconv.FormatInt(a, 10) + x + strconv.FormatInt(b, 10) + y
	}
	switch s := max(seconds, 0); {
	case s < 60:
		return strconv.FormatInt(s, 10) + "s"
	case s < 3600:
		return strconv.FormatInt(s/60, 10) + "m"
	case s < 86400:
		return two(s/3600, "h", s%3600/60, "m")
	default:
		return two(s/86400, "d", s%86400/3600, "h")
	}
}

// PerSecond returns a rate in a column.
func PerSecond(v float64) string {
	switch {
	case v == 0:
		return "0"
	case v < 9.95:
		return strconv.FormatFloat(v, 'f', 1, 64)
	}
	return strconv.FormatFloat(v, 'f', 0, 64)
}

// Head returns a line about the daemons.
func (x *Sample) Head() string {
	text := "router runs"
	if !x.Router {
		text = "no router runs"
	}
	if c := x.Scheduler; c != nil {
		agents := "agents"
		if c.Agents == 1 {
			agents = "agent"
		}
		return text + fmt.Sprintf(", scheduler runs for %s with %d %s, %d idle", Span(c.UptimeSeconds), c.Agents, agents, c.Idle)
	}
	return text + ", scheduler: " + human.Clean(x.Silent)
}

// Cells returns a stage's columns.
func (t *Stage) Cells() []string {
	oldest := "-"
	if !t.Oldest.IsZero() {
		oldest = Span(t.OldestSeconds)
	}
	note := ""
	switch {
	case t.Problem != "":
		note = human.Clean(t.Problem)
	case t.Recipients > 0:
		note = strconv.Itoa(t.Recipients) + " recipients wait or are being delivered"
	}
	return []string{t.Name, strconv.Itoa(t.Messages), oldest, note}
}

// Columns returns the titles of a thread's cells.
func Columns() []string {
	return []string{"THREAD", "STATE", "N", "R", "RUN", "TRIED", "/S", "WAIT", "OLDEST", "TROUBLE"}
}

// Cells returns a thread's columns.
func (t *Thread) Cells() []string {
	run, wait := strconv.Itoa(t.Running), "-"
	if t.Limit > 0 {
		run += "/" + strconv.Itoa(t.Limit)
	}
	if t.WaitSeconds > 0 {
		wait = Span(t.WaitSeconds)
	}
	return []string{t.Name(), t.State, strconv.Itoa(t.Messages), strconv.Itoa(t.Recipients), run, strconv.FormatUint(t.Attempts, 10),
		PerSecond(t.Rate), wait, Span(t.OldestSeconds), human.Cut(human.Clean(strings.Join(strings.Fields(t.Trouble), " ")), 60)}
}

// Print writes a sample as text, with so many threads at most; 0: all.
func (x *Sample) Print(w io.Writer, threads int) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "%s  %s\n%s\n\n", x.Time.Local().Format(time.DateTime), x.PostOffice, x.Head())
	fmt.Fprintln(t, "STAGE\tMESSAGES\tOLDEST")
	for i := range x.Stages {
		fmt.Fprintln(t, strings.TrimRight(strings.Join(x.Stages[i].Cells(), "\t"), "\t"))
	}
	if x.Seconds > 0 {
		fmt.Fprintf(t, "\nA SECOND\t(over %.1f s)\n", x.Seconds)
		for _, r := range x.Rates.Named() {
			fmt.Fprintf(t, "%s\t%s\n", r.Name, PerSecond(r.Value))
		}
	}
	if len(x.Threads) > 0 {
		fmt.Fprintln(t, "\n"+strings.Join(Columns(), "\t"))
	}
	for i := range x.Threads {
		if threads > 0 && i == threads {
			fmt.Fprintf(t, "and %d more\n", len(x.Threads)-i)
			break
		}
		fmt.Fprintln(t, strings.TrimRight(strings.Join(x.Threads[i].Cells(), "\t"), "\t"))
	}
	if len(x.Alarms) > 0 {
		fmt.Fprintln(t, "\nALARM\tWHERE\tFOR\tWHAT")
	}
	for _, a := range x.Alarms {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", a.Kind, human.Clean(a.Subject), Span(int64(x.Time.Sub(a.Since)/time.Second)), human.Clean(strings.TrimSpace(a.Text)))
	}
	return t.Flush()
}
