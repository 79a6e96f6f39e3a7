// Package kill shows that no death of a process at any state-changing system call
// loses, repeats or leaves anything (M1, M7, M18, M35, K7, S7).
//
// A reference run lists the steps: which program makes which call on which class of
// object, in a load of every kind of message. Then, in systems that live through many
// deaths, a process is killed before it makes such a call; zmctl run and the scheduler
// start it again, the load goes on and drains, and what arrived is compared with what
// was accepted. Steps that only a recovery makes are found by the way and killed in
// their turn, and the whole system is killed at each step as well. strace over a run of
// its own records the steps, independently of the injector.
//
// What smtpserver learns of clients and recipients, and what an operator suspends, has mail of
// its own, which only kills at those steps bring.
//
// Nothing may be lost, come twice or be left. What a killed SMTP agent sent, and did
// not mark as delivered, may come twice; the message's history has called it in doubt.
package kill

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"zmailer/test/inject"
	"zmailer/test/load"
	"zmailer/test/suite"
)

// Programs returns those that are killed.
func Programs() []string {
	return []string{"submit", "smtpserver", "router", "scheduler", "ta-smtp", "ta-mailbox", load.Operator}
}

// Options say how much is done.
type Options struct {
	Dir   string // for the programs and the systems; emptied by no one
	Out   io.Writer
	Quick bool          // each step once; else more occurrences, recoveries and whole systems
	Lanes int           // systems that are killed at the same time
	Limit time.Duration // for the kills; what is not reached by then is not covered
	Only  string        // steps whose text holds this; "" for all
}

// Run makes all kills and returns the table.
func Run(ctx context.Context, o Options) (*Table, error) {
	if err := inject.Supported(); err != nil {
		return nil, err
	}
	if _, err := exec.LookPath("strace"); err != nil {
		return nil, fmt.Errorf("the reference run needs strace: %w", err)
	}
	// ta-mailbox works as the users that own the mailboxes.
	if err := os.Chmod(o.Dir, 0o755); err != nil {
		return nil, err
	}
	bin := filepath.Join(o.Dir, "bin")
	if err := suite.Build(bin); err != nil {
		return nil, err
	}
	began := time.Now()
	traced, steps, err := references(ctx, o, bin)
	if err != nil {
		return nil, err
	}
	fmt.Fprintf(o.Out, "reference: strace saw %d steps, the injector %d, in %v\n", len(traced), len(steps), time.Since(began).Round(time.Second))
	t := newTable(traced)
	r := &round{o: o, bin: bin, table: t, known: map[inject.Pair]bool{}, deadline: time.Now().Add(o.Limit)}
	for _, s := range steps {
		r.known[s.Pair] = true
	}
	err = r.all(ctx, steps)
	return t, err
}

// references makes the two reference runs side by side.
func references(ctx context.Context, o Options, bin string) (map[inject.Pair]int, []Step, error) {
	var traced map[inject.Pair]int
	var steps []Step
	var errs [2]error
	var wg sync.WaitGroup
	wg.Go(func() { traced, errs[0] = trace(ctx, bin, filepath.Join(o.Dir, "traced")) })
	wg.Go(func() { steps, errs[1] = observe(ctx, bin, filepath.Join(o.Dir, "observed")) })
	wg.Wait()
	return traced, steps, errors.Join(errs[:]...)
}

// round is all kills of one run.
type round struct {
	o        Options
	bin      string
	table    *Table
	deadline time.Time

	mu      sync.Mutex
	known   map[inject.Pair]bool // steps that have been, or will be, tried
	targets []Target             // to be tried, the first first
}

// all tries every step, then what was found by the way.
func (r *round) all(ctx context.Context, steps []Step) error {
	r.targets = targets(steps, r.o.Quick)
	if r.o.Only != "" {
		kept := r.targets[:0]
		for _, t := range r.targets {
			if strings.Contains(t.String(), r.o.Only) {
				kept = append(kept, t)
			}
		}
		r.targets = kept
	}
	fmt.Fprintf(r.o.Out, "%d kills are planned, %d systems at a time\n", len(r.targets), r.o.Lanes)
	errs := make([]error, r.o.Lanes)
	var wg sync.WaitGroup
	for n := range r.o.Lanes {
		wg.Go(func() { errs[n] = r.drive(ctx, filepath.Join(r.o.Dir, fmt.Sprintf("lane%d", n))) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// drive takes targets until there are none, or no time.
func (r *round) drive(ctx context.Context, dir string) (err error) {
	var l *lane
	end := func() error {
		was := l
		if l = nil; was == nil {
			return nil
		}
		return was.close()
	}
	defer func() { err = errors.Join(err, end()) }()
	for n := 0; ; n++ {
		t, ok := r.next()
		if !ok || ctx.Err() != nil {
			return ctx.Err()
		}
		// A new system now and then: what one did not mend the next must not bear.
		if l != nil && (l.broken || l.trials == maxTrials || t.Fresh) {
			if err := end(); err != nil {
				return err
			}
		}
		if l == nil {
			if l, err = newLane(r.bin, fmt.Sprintf("%s-%d", dir, n)); err != nil {
				return err
			}
		}
		r.one(ctx, l, t)
	}
}

// one makes one kill.
func (r *round) one(ctx context.Context, l *lane, t Target) {
	fresh := l.trials == 0
	trial := l.try(ctx, t)
	if !trial.Hit && !fresh && !trial.bad() {
		r.retry(t)
		return
	}
	r.found(t, trial)
	r.table.add(trial)
	if trial.bad() {
		fmt.Fprintf(r.o.Out, "%v\n", trial)
	}
}

// maxTrials is how many kills one system lives through.
const maxTrials = 40

func (r *round) next() (Target, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.targets) == 0 || time.Now().After(r.deadline) {
		return Target{}, false
	}
	t := r.targets[0]
	r.targets = r.targets[1:]
	return t, true
}

// found adds the steps that only this kill's recovery has made (K7): the same kill,
// then one at that step.
func (r *round) found(t Target, trial *Trial) {
	if r.o.Quick || t.After != nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range trial.Steps {
		if r.known[p] || !ours(p) {
			continue
		}
		r.known[p] = true
		first := t
		r.targets = append(r.targets, Target{Pair: p, Occurrence: 1, After: &first})
	}
}

// retry has a step that was not reached tried in a new system: some directories are
// made once.
func (r *round) retry(t Target) {
	r.mu.Lock()
	defer r.mu.Unlock()
	t.Fresh = true
	r.targets = append(r.targets, t)
}

func killed(program string) bool {
	for _, p := range Programs() {
		if p == program {
			return true
		}
	}
	return false
}
