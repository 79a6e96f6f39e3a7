package kill

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"zmailer/test/inject"
)

// Trial is one kill and what came of it.
type Trial struct {
	Target     Target
	Hit        bool // the step was reached
	Lost       []string
	Duplicated []string
	Wrong      []string // refused and yet here, or denied
	Orphans    []string
	Again      int // copies that came again and were in doubt
	Doubts     int // in-doubt events
	Steps      []inject.Pair
	Dir        string // of the system
	Began      time.Time
	// From Began on: until everything was accepted, was drained, was compared.
	Sent, Drained, Took time.Duration
	Err                 error // the system did not mend it in time
}

// bad reports whether a promise was broken.
func (t *Trial) bad() bool {
	return t.Err != nil || len(t.Lost)+len(t.Duplicated)+len(t.Wrong)+len(t.Orphans) > 0
}

func (t *Trial) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "kill %v (%v):", t.Target, t.Took.Round(time.Millisecond))
	for word, list := range map[string][]string{"lost": t.Lost, "duplicated": t.Duplicated, "wrong": t.Wrong, "orphan": t.Orphans} {
		for _, text := range list {
			fmt.Fprintf(&b, "\n\t%s: %s", word, text)
		}
	}
	if t.Err != nil {
		fmt.Fprintf(&b, "\n\tnot mended: %v", t.Err)
	}
	return b.String()
}

// sends reports whether an SMTP agent was among the dead.
func (t Target) sends() bool {
	return t.Whole || t.Program == "ta-smtp" || t.After != nil && t.After.sends()
}

// row is what the trials of one step sum up to.
type row struct {
	kills, torn, whole, missed       int
	lost, duplicated, wrong, orphans int
	again, doubts, stuck             int
	seen                             int // by strace
}

// Table is what all trials came to.
type Table struct {
	mu     sync.Mutex
	rows   map[inject.Pair]*row
	traced map[inject.Pair]int
	trials []*Trial
}

func newTable(traced map[inject.Pair]int) *Table {
	t := &Table{rows: map[inject.Pair]*row{}, traced: traced}
	for p, n := range traced {
		t.row(p).seen = n
	}
	return t
}

func (t *Table) row(p inject.Pair) *row {
	if t.rows[p] == nil {
		t.rows[p] = &row{}
	}
	return t.rows[p]
}

func (t *Table) add(trial *Trial) {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.row(trial.Target.Pair)
	switch {
	case !trial.Hit:
		r.missed++
	case trial.Target.Whole:
		r.whole++
	case trial.Target.Torn:
		r.torn++
	default:
		r.kills++
	}
	r.lost += len(trial.Lost)
	r.duplicated += len(trial.Duplicated)
	r.wrong += len(trial.Wrong)
	r.orphans += len(trial.Orphans)
	r.again += trial.Again
	r.doubts += trial.Doubts
	if trial.Err != nil {
		r.stuck++
	}
	t.trials = append(t.trials, trial)
}

// Uncovered returns the steps that strace saw and at which nothing was killed.
func (t *Table) Uncovered() []inject.Pair {
	var list []inject.Pair
	for p := range t.traced {
		if r := t.rows[p]; r.kills+r.torn+r.whole == 0 {
			list = append(list, p)
		}
	}
	slices.SortFunc(list, byProgram)
	return list
}

func byProgram(a, b inject.Pair) int {
	return cmp.Or(cmp.Compare(program(a.Program), program(b.Program)), cmp.Compare(a.Path, b.Path), cmp.Compare(a.Name, b.Name))
}

// Coverage returns the part of strace's steps at which something was killed.
func (t *Table) Coverage() float64 {
	if len(t.traced) == 0 {
		return 0
	}
	return 1 - float64(len(t.Uncovered()))/float64(len(t.traced))
}

// slow is longer than mail may wait for what a death leaves, without a reason.
const slow = 10 * time.Second

// wantedCoverage is the least part.
const wantedCoverage = 0.95

// Failed reports whether a promise is broken or too little was tried.
func (t *Table) Failed() bool {
	sum := t.sum()
	return sum.lost+sum.duplicated+sum.wrong+sum.orphans+sum.stuck > 0 || t.Coverage() < wantedCoverage
}

func (t *Table) sum() row {
	var s row
	for _, r := range t.rows {
		s.kills += r.kills
		s.torn += r.torn
		s.whole += r.whole
		s.missed += r.missed
		s.lost += r.lost
		s.duplicated += r.duplicated
		s.wrong += r.wrong
		s.orphans += r.orphans
		s.again += r.again
		s.doubts += r.doubts
		s.stuck += r.stuck
	}
	return s
}

// Print writes the table for people.
func (t *Table) Print(out io.Writer) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "process\tsystem call\tobject\tkilled\ttorn\tall\tlost\ttwice\twrong\torphans\tstuck\tin doubt\tagain\t")
	line := func(a, b, c string, r *row) {
		fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t\n", a, b, c, r.kills, r.torn, r.whole, r.lost, r.duplicated, r.wrong, r.orphans, r.stuck, r.doubts, r.again)
	}
	for _, p := range slices.SortedFunc(maps.Keys(t.rows), byProgram) {
		if r := t.rows[p]; r.kills+r.torn+r.whole > 0 {
			line(p.Program, p.Name, p.Path, r)
		}
	}
	s := t.sum()
	line("all", "", "", &s)
	if err := w.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(out, `killed: deaths of the process before the call; torn: in the middle of what it writes;
all: deaths of the whole system there; stuck: not mended in time; in doubt: deliveries that the history calls so; again: copies that came twice therefore`)
	uncovered := t.Uncovered()
	fmt.Fprintf(out, "strace saw %d steps, killed at %d of them, %.1f %%; %d kills were not reached\n",
		len(t.traced), len(t.traced)-len(uncovered), 100*t.Coverage(), s.missed)
	for _, p := range uncovered {
		fmt.Fprintf(out, "not covered: %v\n", p)
	}
	for _, trial := range t.trials {
		switch {
		case !trial.Hit:
			fmt.Fprintf(out, "not reached: %v\n", trial.Target)
		case trial.Took > slow:
			fmt.Fprintf(out, "slow, accepted in %v, drained in %v, compared in %v after %s: %v, %s\n", trial.Sent.Round(time.Millisecond), trial.Drained.Round(time.Millisecond),
				trial.Took.Round(time.Millisecond), trial.Began.Format(time.TimeOnly), trial.Target, filepath.Base(trial.Dir))
		}
	}
	return nil
}
