package faults

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"golang.org/x/sys/unix"

	"zmailer/test/inject"
	"zmailer/test/load"
	"zmailer/test/suite"
)

// Trial is one fault and what came of the round of messages that met it.
type Trial struct {
	Injection
	Began     time.Time
	Hits      int    // answers that were given
	Postponed bool   // not met, and to be tried once more later
	Object    string // of the first

	Lost       []string
	Duplicated []string
	Wrong      []string // refused and yet here, denied, torn
	Orphans    []string // left by this fault or one of those since the last drain
	Noise      []string // complaints about EINTR, which is no trouble
	Ended      []string // daemons that a fault in their work ended
	Refused    int      // submissions that were told to try again
	Deferred   int      // deliveries that were put off by us
	Doubts     int      // in-doubt events
	Repeated   int      // copies that came again therefore
}

// Bad reports whether a promise was broken.
func (t *Trial) Bad() bool {
	return len(t.Lost)+len(t.Duplicated)+len(t.Wrong)+len(t.Orphans)+len(t.Noise)+len(t.Ended) > 0
}

func (t *Trial) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%v, %d times, %s:\n", t.Injection, t.Hits, t.Object)
	for _, list := range []struct {
		word string
		all  []string
	}{{"lost", t.Lost}, {"twice", t.Duplicated}, {"wrong", t.Wrong}, {"orphan", t.Orphans}, {"not retried", t.Noise}, {"ended", t.Ended}} {
		for _, text := range list.all {
			fmt.Fprintf(&b, "\t%s: %s\n", list.word, text)
		}
	}
	return b.String()
}

// Table is what all faults came to.
type Table struct {
	Trials      []*Trial // the number of a round is its place here, from 1
	NotTried    int      // for want of time
	Resubmitted int      // times that messages the router had set aside were given back
	Audit       *load.Audit

	orphans map[string]bool
}

// join is one table of all, nil if there is none.
func join(tables []*Table) *Table {
	var all *Table
	for _, t := range tables {
		switch {
		case t == nil:
		case all == nil:
			all = t
		default:
			all.Trials = append(all.Trials, t.Trials...)
			all.NotTried += t.NotTried
			all.Resubmitted += t.Resubmitted
		}
	}
	return all
}

// take gives the trials from first on what was found.
func (t *Table) take(a *load.Audit, first int, events []suite.Event) {
	trials := t.Trials[first:]
	of := func(f load.Finding) *Trial {
		if n := f.Try.Round - 1 - first; n >= 0 && n < len(trials) {
			return trials[n]
		}
		return nil // of an earlier drain
	}
	for _, f := range a.Lost {
		if x := of(f); x != nil {
			x.Lost = append(x.Lost, f.String())
		}
	}
	for _, f := range a.Duplicated {
		if x := of(f); x != nil {
			x.Duplicated = append(x.Duplicated, f.String())
		}
	}
	for _, f := range slices.Concat(a.Torn, a.Unwanted, a.Denied) {
		if x := of(f); x != nil {
			x.Wrong = append(x.Wrong, f.String())
		}
	}
	for _, f := range a.Repeated {
		if x := of(f); x != nil {
			x.Repeated++
		}
	}
	if t.orphans == nil {
		t.orphans = map[string]bool{}
	}
	for _, name := range a.Orphans {
		if !t.orphans[name] {
			t.orphans[name] = true
			last := trials[len(trials)-1]
			last.Orphans = append(last.Orphans, fmt.Sprintf("%s, left by this or one of %d faults before", name, len(trials)-1))
		}
	}
	for i, x := range trials {
		end := time.Now()
		if i+1 < len(trials) {
			end = trials[i+1].Began
		}
		for _, e := range events {
			if !e.Time.Before(x.Began) && e.Time.Before(end) {
				x.event(e)
			}
		}
	}
}

// event notes what the log says while the trial was under way. Another trial's late
// consequences count here too: the columns that are made of it are for reading.
func (t *Trial) event(e suite.Event) {
	told := e.Program + " " + e.Word + " " + e.Get("name") + " " + e.Get("reason")
	switch {
	case e.Word == "deferred" && e.Program == "scheduler" && e.Get("status") != "4.2.1", e.Word == "deferred" && e.Program == "router":
		t.Deferred++
	case e.Word == "storage-trouble" && e.Program == "smtpserver":
		t.Refused++
	case e.Word == "in-doubt":
		t.Doubts++
	case e.Word == "daemon-ended" && t.Steady && e.Get("reason") != "exit status 0" && e.Get("reason") != "signal: terminated": // that was asked for
		t.Ended = append(t.Ended, e.Get("daemon")+": "+e.Get("reason"))
	}
	// Trials damage these files, and what finds that says so.
	damaged := load.Remembers(t.Path) && (e.Word == "verify-cache-damaged" || e.Word == "clients-trouble") &&
		!strings.Contains(e.Get("reason"), unix.EINTR.Error())
	if t.Errno == unix.EINTR && t.Steady && !damaged && (e.Level == "ERROR" || e.Word == "local-trouble") {
		t.Noise = append(t.Noise, told)
	}
}

// Failed reports whether a promise is broken.
func (t *Table) Failed() bool {
	return slices.ContainsFunc(t.Trials, (*Trial).Bad)
}

// row is what the trials of one step and answer sum up to.
type row struct {
	faults, missed, lost, twice, wrong, orphans, noise, ended int
	refused, deferred, doubts, again                          int
}

func (r *row) add(t *Trial) {
	switch {
	case t.Hits > 0:
		r.faults++
	case !t.Postponed:
		r.missed++
	}
	r.lost += len(t.Lost)
	r.twice += len(t.Duplicated)
	r.wrong += len(t.Wrong)
	r.orphans += len(t.Orphans)
	r.noise += len(t.Noise)
	r.ended += len(t.Ended)
	r.refused += t.Refused
	r.deferred += t.Deferred
	r.doubts += t.Doubts
	r.again += t.Repeated
}

// Print writes the table for people: a line for each step, the answers in one column.
func (t *Table) Print(out io.Writer) error {
	rows, words := map[inject.Pair]*row{}, map[inject.Pair][]string{}
	var sum row
	for _, x := range t.Trials {
		if rows[x.Pair] == nil {
			rows[x.Pair] = &row{}
		}
		rows[x.Pair].add(x)
		sum.add(x)
		if x.Hits > 0 {
			words[x.Pair] = append(words[x.Pair], x.word())
		}
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "process\tsystem call\tobject\tanswers\tfaults\tlost\ttwice\twrong\torphans\tnoise\tended\t4xx\tdeferred\tin doubt\tagain")
	line := func(a, b, c, d string, r *row) {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%d\n", a, b, c, d,
			r.faults, r.lost, r.twice, r.wrong, r.orphans, r.noise, r.ended, r.refused, r.deferred, r.doubts, r.again)
	}
	for _, p := range slices.SortedFunc(maps.Keys(rows), byProgram) {
		line(p.Program, p.Name, p.Path, strings.Join(words[p], " "), rows[p])
	}
	line("all", "", "", "", &sum)
	if err := w.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(out, `answers: what the call said instead of being executed, x5 in a row, +2 with what the program called
next to change a file, short half a write; wrong:
refused and yet here, refused for good, or torn; noise: a complaint about EINTR; ended: a daemon
that did not outlive it; 4xx: smtpserver's complaints; in doubt: deliveries that the log calls so;
again: copies that came twice therefore`)
	fmt.Fprintf(out, "%d faults at %d steps; %d were not met, for %d there was no time; messages given back from deferred/ %d times\n",
		sum.faults, len(rows), sum.missed, t.NotTried, t.Resubmitted)
	for _, x := range t.Trials {
		if x.Hits == 0 && !x.Postponed {
			fmt.Fprintf(out, "not met: %v\n", x.Injection)
		}
	}
	return nil
}
