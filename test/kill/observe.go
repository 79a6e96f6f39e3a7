package kill

import (
	"context"
	"errors"
	"os/exec"
	"path/filepath"
	"strings"

	"zmailer/test/inject"
	"zmailer/test/load"
	"zmailer/test/suite"
)

// settings have a system look often and give up waiting soon.
func settings() map[string]string {
	return map[string]string{"ROUTERPOLL": "1s", "HASHLEVELS": "1", "LOGLEVEL": "info"}
}

// fast has zmctl run start again at once what was killed.
func fast(cmd *exec.Cmd) {
	cmd.Args = append(cmd.Args, "--restart-pause=10ms")
}

// prepared returns a system and its load, not started.
func prepared(bin, dir string) (*suite.Suite, *load.Load, error) {
	s := &suite.Suite{Bin: bin, Dir: dir, Settings: settings(), Files: map[string]string{"scheduler.conf": load.SoonConf()}}
	load.Remember(s)
	l, err := load.Prepare(s)
	if err != nil {
		return nil, nil, err
	}
	if err := s.Init(); err != nil {
		l.Close()
		return nil, nil, err
	}
	return s, l, nil
}

// classes returns those of a system's files.
func classes(s *suite.Suite) inject.Classes {
	return inject.Classes{PostOffice: s.PostOffice(), Stores: []string{filepath.Join(s.Dir, "mail"), filepath.Join(s.Dir, "stores")}}
}

// observe has a system work without any kill and lists its steps.
func observe(ctx context.Context, bin, dir string) (steps []Step, err error) {
	s, l, err := prepared(bin, dir)
	if err != nil {
		return nil, err
	}
	defer l.Close()
	i := &inject.Injector{Classes: classes(s)}
	s.Launch = func(cmd *exec.Cmd) error { fast(cmd); return i.Start(cmd) }
	l.StartSubmit, l.StartOperator = i.Start, i.Start
	if err := s.Start(); err != nil {
		return nil, err
	}
	defer s.Kill()
	const rounds = 2
	err = runRound(ctx, s, l, 0)
	begin := i.Seen()
	i.Forget()
	for n := range rounds {
		err = errors.Join(err, runRound(ctx, s, l, n+1))
	}
	steady := i.Seen()
	i.Forget()
	// A round of its own: of the other steps it makes more than the rounds that are killed.
	l.Extra = []load.Kind{load.Long}
	err = errors.Join(err, runRound(ctx, s, l, rounds+1))
	for p, n := range i.Seen() {
		if load.Summarises(p.Path) {
			steps = append(steps, Step{p, Steady, n})
		}
	}
	i.Forget()
	err = errors.Join(err, l.Keep(ctx, firstExtra), drain(ctx, s))
	for p, n := range i.Seen() {
		switch {
		case p.Program == load.Operator && ours(p):
			steps = append(steps, Step{p, Steady, n})
		case load.Remembers(p.Path):
			steps = append(steps, Step{p, Learning, 1})
		case steady[p] == 0 && begin[p] == 0 && ours(p) && (strings.HasPrefix(p.Path, "pipe") || strings.HasPrefix(p.Path, "socket")):
			steps = append(steps, Step{p, Learning, 1}) // a question about a recipient, or its answer
		}
	}
	i.Forget()
	err = errors.Join(err, s.Stop(), i.Close())
	if err != nil {
		return nil, err
	}
	for p, n := range steady {
		steps = append(steps, Step{p, Steady, max(1, n/rounds)})
	}
	for p := range begin {
		if steady[p] == 0 && !load.Remembers(p.Path) {
			steps = append(steps, Step{p, Start, 1})
		}
	}
	for p := range i.Seen() {
		if steady[p] == 0 && begin[p] == 0 && !load.Remembers(p.Path) {
			steps = append(steps, Step{p, Stop, 1})
		}
	}
	return steps, nil
}

// firstExtra is the number of the first round beside those that are counted.
const firstExtra = 1000

// runRound sends a round and has it drain.
func runRound(ctx context.Context, s *suite.Suite, l *load.Load, round int) error {
	if err := l.Round(ctx, round); err != nil {
		return err
	}
	return drain(ctx, s)
}

// ours reports whether a step is one of the programs that are killed.
func ours(p inject.Pair) bool { return killed(p.Program) && !strings.HasPrefix(p.Path, "/") }
