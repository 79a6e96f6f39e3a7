package faults

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"zmailer/test/inject"
	"zmailer/test/load"
	"zmailer/test/suite"
)

// Programs returns those whose calls fail.
func Programs() []string {
	return []string{"submit", "smtpserver", "router", "scheduler", "ta-smtp", "ta-mailbox", load.Operator}
}

// Injection is one fault: the next calls of a step are answered so.
type Injection struct {
	inject.Pair
	Errno unix.Errno // 0: a short write
	Times int        // in a row
	// Wide: after the first, whatever the program calls next that changes a file, as
	// when the disk is broken for a moment: what it does about the first error fails too.
	Wide   bool
	Steady bool // the step is made with every round of messages, not only at a start
}

// word names the answer.
func (i Injection) word() string {
	w := "short"
	if i.Errno != 0 {
		w = unix.ErrnoName(i.Errno)
	}
	switch {
	case i.Wide:
		w += fmt.Sprintf("+%d", i.Times-1)
	case i.Times > 1:
		w += fmt.Sprintf("x%d", i.Times)
	}
	return w
}

func (i Injection) String() string { return i.word() + " from " + i.Pair.String() }

const (
	// burst is how often in a row a call fails that is tried again at once.
	burst = 5
	// wide is how many calls fail with Wide: what is done about the first error, and what
	// about the second.
	wide = 3
)

// answers returns the faults for a step: those that the call has in its manual, and what
// a device that breaks says to all.
func answers(p inject.Pair) []Injection {
	one := func(e unix.Errno) Injection { return Injection{Pair: p, Errno: e, Times: 1} }
	many := func(e unix.Errno) Injection { return Injection{Pair: p, Errno: e, Times: burst} }
	list := []Injection{one(unix.EINTR), many(unix.EINTR), one(unix.EIO)}
	if stream(p) {
		return list
	}
	list = append(list, many(unix.EIO), Injection{Pair: p, Errno: unix.EIO, Times: wide, Wide: true})
	switch {
	case p.Name == "openat":
		list = append(list, one(unix.ENOSPC), one(unix.EMFILE))
	case strings.Contains(p.Name, "write"):
		list = append(list, one(unix.ENOSPC), many(unix.ENOSPC), one(0))
	case p.Name != "flock" && p.Name != "unlinkat" && p.Name != "fchmod":
		list = append(list, one(unix.ENOSPC))
	}
	return list
}

// stream reports whether a call writes to another process.
func stream(p inject.Pair) bool {
	return strings.HasPrefix(p.Path, "socket") || strings.HasPrefix(p.Path, "pipe")
}

// plan lists the faults: EINTR first, which nothing may show, so that no trouble of
// another fault is taken for one of it. quick takes one for each step, in turn.
func plan(steps map[inject.Pair]bool, quick bool) []Injection {
	pairs := make([]inject.Pair, 0, len(steps))
	for p := range steps {
		pairs = append(pairs, p)
	}
	slices.SortFunc(pairs, byProgram)
	var list []Injection
	for n, p := range pairs {
		all := answers(p)
		for i := range all {
			all[i].Steady = steps[p]
		}
		if !steps[p] {
			// Each start that fails doubles the pause before the next: half a minute for five.
			all = slices.DeleteFunc(all, func(i Injection) bool { return i.Times > 1 && i.Errno != unix.EINTR })
		}
		if quick {
			all = all[n%len(all):][:1]
		}
		list = append(list, all...)
	}
	slices.SortStableFunc(list, func(a, b Injection) int { return cmp.Compare(rank(a), rank(b)) })
	return list
}

func rank(i Injection) int {
	rank := 0
	if i.Errno != unix.EINTR {
		rank = 2
	}
	if !i.Steady {
		rank++ // it ends programs to have them start
	}
	return rank
}

func byProgram(a, b inject.Pair) int {
	return cmp.Or(cmp.Compare(slices.Index(Programs(), a.Program), slices.Index(Programs(), b.Program)),
		cmp.Compare(a.Path, b.Path), cmp.Compare(a.Name, b.Name))
}

// rig is a system under an injector.
type rig struct {
	suite  *suite.Suite
	load   *load.Load
	inject *inject.Injector
}

// newRig starts a system whose calls go through onCall.
func newRig(bin, dir string, onCall func(inject.Call) inject.Action) (*rig, error) {
	s := &suite.Suite{Bin: bin, Dir: dir, Settings: map[string]string{"ROUTERPOLL": "1s"}, Files: map[string]string{"scheduler.conf": load.SoonConf()}}
	load.Remember(s)
	l, err := load.Prepare(s)
	if err != nil {
		return nil, err
	}
	r := &rig{suite: s, load: l}
	r.inject = &inject.Injector{OnCall: onCall,
		Classes: inject.Classes{PostOffice: s.PostOffice(), Stores: []string{filepath.Join(dir, "mail"), filepath.Join(dir, "stores")}}}
	s.Launch = func(cmd *exec.Cmd) error {
		cmd.Args = append(cmd.Args, "--restart-pause=10ms")
		return r.inject.Start(cmd)
	}
	l.StartSubmit, l.StartOperator = r.inject.Start, r.inject.Start
	if err := errors.Join(s.Init()); err != nil {
		return nil, errors.Join(err, r.close())
	}
	if err := s.Start(); err != nil {
		return nil, errors.Join(err, r.close())
	}
	return r, nil
}

// close ends the system at once.
func (r *rig) close() error {
	r.suite.Kill()
	r.load.Close()
	return r.inject.Close()
}

// steps has a system work without a fault and gives the steps that it makes: true for
// those that each round has, false for those of a start.
func steps(ctx context.Context, bin, dir string) (found map[inject.Pair]bool, err error) {
	r, err := newRig(bin, dir, nil)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	for round := range 3 {
		if round == 2 {
			r.load.Extra = []load.Kind{load.Long}
		}
		if err := r.load.Round(ctx, round); err != nil {
			return nil, err
		}
		if _, err := r.load.Drain(ctx); err != nil {
			return nil, err
		}
		if round == 0 {
			found = map[inject.Pair]bool{}
			for p := range r.inject.Seen() {
				found[p] = false
			}
			r.inject.Forget()
		}
	}
	for p := range r.inject.Seen() {
		found[p] = true
	}
	r.inject.Forget()
	if err := r.load.Keep(ctx, firstExtra); err != nil {
		return nil, err
	}
	if _, err := r.load.Drain(ctx); err != nil {
		return nil, err
	}
	for p := range r.inject.Seen() {
		if p.Program == load.Operator || load.Remembers(p.Path) && p.Name != "mkdirat" { // once in a postoffice
			found[p] = true
		}
	}
	for p, steady := range found {
		if !slices.Contains(Programs(), p.Program) || strings.HasPrefix(p.Path, "/") || !steady && once(p) {
			delete(found, p)
		}
	}
	return found, nil
}

// firstExtra is the number of the first round beside those that are counted.
const firstExtra = 1000

// once reports whether a step is one of a mailbox's first message only: it creates the
// mailbox.
func once(p inject.Pair) bool {
	return strings.HasPrefix(p.Path, "mail/") && (p.Name == "mkdirat" || p.Name == "fchmodat" || p.Name == "openat" || p.Name == "fsync")
}
