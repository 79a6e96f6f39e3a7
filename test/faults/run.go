package faults

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"zmailer/test/inject"
	"zmailer/test/load"
	"zmailer/test/suite"
)

// Options say how much is done.
type Options struct {
	Dir   string // for the programs and the systems; emptied by no one
	Out   io.Writer
	Quick bool          // one fault for each step, another kind with each
	Limit time.Duration // for the faults; what is not reached by then is not tried
	Only  string        // faults whose text holds this; "" for all
	Lanes int           // systems at the same time, each with its part of the faults; 0: one
}

// Times of one fault.
const (
	hitWithin   = 3 * time.Second  // it must be met by then
	backWithin  = 3 * time.Second  // a program that did not start is started again
	drainWithin = 90 * time.Second // every wait of the product for a second try is shorter
	sweepAfter  = 8 * time.Second  // longer than most drains
	batch       = 60               // faults between two drains
)

// Run injects all faults into one system, or into as many as there are lanes, and returns
// the table.
func Run(ctx context.Context, o Options) (*Table, error) {
	if err := inject.Supported(); err != nil {
		return nil, err
	}
	// ta-mailbox works as the users that own the mailboxes.
	if err := os.Chmod(o.Dir, 0o755); err != nil {
		return nil, err
	}
	bin := filepath.Join(o.Dir, "bin")
	if err := suite.Build(bin); err != nil {
		return nil, err
	}
	known, err := steps(ctx, bin, filepath.Join(o.Dir, "observed"))
	if err != nil {
		return nil, err
	}
	list := choose(plan(known, o.Quick), o.Only)
	fmt.Fprintf(o.Out, "%d steps, %d faults\n", len(known), len(list))
	lanes := deal(list, max(o.Lanes, 1))
	tables, errs := make([]*Table, len(lanes)), make([]error, len(lanes))
	var systems sync.WaitGroup
	for i, part := range lanes {
		systems.Go(func() {
			tables[i], errs[i] = lane(ctx, o, bin, fmt.Sprintf("system%d", i+1), part)
		})
	}
	systems.Wait()
	return join(tables), errors.Join(errs...)
}

// deal gives each lane its part, in the order that all have.
func deal(list []Injection, lanes int) [][]Injection {
	parts := make([][]Injection, lanes)
	for i, injection := range list {
		parts[i%lanes] = append(parts[i%lanes], injection)
	}
	return parts
}

// lane injects faults into one system.
func lane(ctx context.Context, o Options, bin, name string, list []Injection) (t *Table, err error) {
	c := &campaign{o: o, name: name, began: time.Now(), table: &Table{}}
	if c.rig, err = newRig(bin, filepath.Join(o.Dir, name), c.onCall); err != nil {
		return nil, err
	}
	err = c.all(ctx, list)
	return c.table, errors.Join(err, c.rig.close())
}

// campaign is all faults of one system.
type campaign struct {
	o     Options
	name  string
	began time.Time
	rig   *rig
	table *Table

	mu    sync.Mutex // what follows is used by the injector as well
	armed *Trial
	left  int           // answers that are still to be given
	hit   chan struct{} // closed with the first
}

// onCall answers for the step that is armed.
func (c *campaign) onCall(call inject.Call) inject.Action {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.left == 0 {
		return inject.Action{}
	}
	if wide := c.armed.Wide && c.armed.Hits > 0 && call.Program == c.armed.Program && !stream(call.Pair()); call.Pair() != c.armed.Pair && !wide {
		return inject.Action{}
	}
	action := inject.Action{Errno: c.armed.Errno}
	if c.armed.Errno == 0 {
		if action.Part = call.Size / 2; action.Part == 0 {
			return inject.Action{} // a byte is not written by halves
		}
	}
	if c.armed.Hits++; c.armed.Hits == 1 {
		c.armed.Object = call.Object
		close(c.hit)
	}
	c.left--
	return action
}

func (c *campaign) arm(t *Trial) (hit <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.armed, c.left, c.hit = t, t.Times, make(chan struct{})
	return c.hit
}

func (c *campaign) disarm() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.left = 0
}

// all injects one fault after the other while mail goes on, and has the system drain
// now and then.
func (c *campaign) all(ctx context.Context, list []Injection) error {
	deadline := time.Now().Add(c.o.Limit)
	first, planned := 0, len(list)
	for n := 0; n < len(list); n++ {
		injection := list[n]
		if time.Now().After(deadline) {
			c.table.NotTried = len(list) - n
			break
		}
		t, err := c.one(ctx, injection, n >= planned)
		if err != nil {
			return err
		}
		if t.Hits == 0 && n < planned {
			// The program waits, for what failed before: once more when all else is done.
			t.Postponed = true
			list = append(list, injection)
		}
		last := n == len(list)-1
		if len(c.table.Trials)-first >= batch || last || n < planned && injection.Errno == unix.EINTR && list[n+1].Errno != unix.EINTR {
			if err := c.drain(ctx, first); err != nil {
				return err
			}
			first = len(c.table.Trials)
		}
	}
	if first < len(c.table.Trials) {
		return c.drain(ctx, first)
	}
	return nil
}

// one injects one fault into a round of messages. patient: it waits for longer.
func (c *campaign) one(ctx context.Context, injection Injection, patient bool) (*Trial, error) {
	t := &Trial{Injection: injection, Began: time.Now()}
	c.table.Trials = append(c.table.Trials, t)
	round := c.rig.load.Round
	switch {
	case injection.Program == load.Operator:
		round = c.rig.load.Operate
	case load.Remembers(injection.Path):
		if err := c.remember(injection); err != nil {
			return nil, err
		}
		round = func(ctx context.Context, n int) error {
			return c.rig.load.Send(ctx, n, load.Greylisted, load.Verified)
		}
	}
	hit := c.arm(t)
	defer c.disarm()
	if !injection.Steady {
		c.restart(injection.Program)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, drainWithin, errors.New("the round is not accepted"))
	defer cancel()
	within := hitWithin
	c.rig.load.Extra = nil
	if load.Summarises(injection.Path) {
		c.rig.load.Extra = []load.Kind{load.Long}
		within *= 3 // it takes three attempts
	}
	if load.Remembers(injection.Path) {
		within *= 3 // it is written some seconds later
	}
	sent := make(chan error, 1)
	go func() { sent <- round(ctx, len(c.table.Trials)) }()
	if patient {
		within *= 5
	}
	timer := time.NewTimer(within)
	defer timer.Stop()
	select {
	case <-hit:
	case <-timer.C:
	case <-ctx.Done():
	}
	err := <-sent
	if ctx.Err() != nil {
		return nil, fmt.Errorf("%v: %w", injection, err)
	}
	if !injection.Steady && injection.Program != "submit" {
		c.await(injection.Program)
	}
	return t, err
}

// remember has smtpserver write what it has learned, and what a fault before has kept it from
// writing, and has it find its files damaged if the step belongs to that.
func (c *campaign) remember(injection Injection) error {
	err := c.rig.load.End("smtpserver")
	c.await("smtpserver")
	if err == nil && load.Rewrites(injection.Path) {
		err = errors.Join(c.rig.load.Damage(), c.rig.load.End("smtpserver"))
		c.await("smtpserver")
	}
	return err
}

// await waits until a program runs again, or long enough.
func (c *campaign) await(program string) {
	for deadline := time.Now().Add(backWithin); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) { // a process has no event
		list, _ := c.rig.suite.Processes()
		if slices.ContainsFunc(list, func(p suite.Process) bool { return p.Name == program }) {
			return
		}
	}
}

// restart ends a program, so that it starts again.
func (c *campaign) restart(program string) {
	list, _ := c.rig.suite.Processes()
	for _, p := range list {
		if p.Name == program {
			_ = syscall.Kill(p.Pid, syscall.SIGTERM) // an error means that it has ended
		}
	}
}

// drain has everything go through and compares; what is wrong belongs to the trials
// since the last time.
func (c *campaign) drain(ctx context.Context, first int) error {
	c.disarm()
	ctx, cancel := context.WithTimeoutCause(ctx, drainWithin, errors.New("it does not drain"))
	defer cancel()
	trials := c.table.Trials[first:]
	began := time.Now()
	var err error
	for {
		n := 0
		try, cancel := context.WithTimeout(ctx, sweepAfter)
		n, err = c.rig.load.Drain(try)
		cancel()
		c.table.Resubmitted += n
		if err == nil || ctx.Err() != nil {
			break
		}
		c.sweep()
	}
	fmt.Fprintf(c.o.Out, "%s, %v: %d faults, drained in %v\n", c.name, time.Since(c.began).Round(time.Second), len(c.table.Trials), time.Since(began).Round(time.Second/10))
	if err != nil {
		err = errors.Join(err, os.WriteFile(filepath.Join(c.o.Dir, c.name+".log"), []byte(c.rig.suite.Log()), 0o644))
		for _, t := range trials {
			fmt.Fprintf(c.o.Out, "since the last drain: %v, %s\n", t.Injection, t.Object)
		}
		return err
	}
	a, err := c.rig.load.Audit()
	if err != nil {
		return err
	}
	c.table.Audit = a
	c.table.take(a, first, c.rig.suite.Events())
	for _, t := range trials {
		if t.Bad() {
			fmt.Fprint(c.o.Out, t)
		}
	}
	return nil
}

// sweep has the scheduler start again if nothing is left but reports that no
// specification names: it removes those at its start, and else every five minutes.
func (c *campaign) sweep() {
	left, err := c.rig.suite.Left()
	for _, name := range left {
		if !strings.HasPrefix(name, "public/report.") {
			err = errors.New("mail is left")
		}
	}
	if err == nil && len(left) > 0 {
		c.restart("scheduler")
	}
}

// choose keeps the faults whose text holds a part.
func choose(list []Injection, only string) []Injection {
	var kept []Injection
	for _, i := range list {
		if only == "" || strings.Contains(i.String(), only) {
			kept = append(kept, i)
		}
	}
	return kept
}
