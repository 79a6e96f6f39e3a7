// Soak runs the whole mail system under a random load while its processes are killed
// and stopped at random, its files are moved, touched, copied and removed by hand, and
// its hash depth changes; then it lets everything drain and compares, recipient for
// recipient, what arrived with what was accepted.
//
//	go run ./scripts/soak -minutes 1
//	go run ./scripts/soak -minutes 10 -seed 4711
//
// It shows, beside their own tests, M18 (locks of the dead), M21 (change of depth), K10
// (hand edits) and A18 (counts come from the disk).
//
// All that is decided comes from one seed, which is printed: each actor has a random
// source of its own made of it, so the same seed gives the same decisions in the same
// order; when they meet the system is up to the machine. With -without an actor is left
// out. What is done is written to the file schedule with its time.
//
// Exit codes: 0 all is accounted for; 1 something is not: the seed is printed and the
// directory kept; 2 bad flags.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// options are the command line.
type options struct {
	minutes float64
	seed    uint64
	bin     string
	dir     string // "": a new one
	keep    bool
	without []string
	drain   time.Duration
}

func main() {
	var o options
	var without string
	flag.Float64Var(&o.minutes, "minutes", 1, "how long load, kills and edits last")
	flag.Uint64Var(&o.seed, "seed", 0, "replay the decisions of this seed; 0: a new one")
	flag.StringVar(&o.bin, "bin", "bin", "directory of the programs")
	flag.StringVar(&o.dir, "dir", "", "work in this directory, which must be empty or missing; else in a new one")
	flag.BoolVar(&o.keep, "keep", false, "keep the directory of a run that was good")
	flag.StringVar(&without, "without", "clerk", "actors to leave out: "+strings.Join(actorNames(), ", "))
	flag.DurationVar(&o.drain, "drain", 3*time.Minute, "the longest that the end may take")
	flag.Parse()
	o.without = strings.FieldsFunc(without, func(r rune) bool { return r == ',' || r == ' ' })
	for _, name := range o.without {
		if !slices.Contains(actorNames(), name) {
			fmt.Fprintf(os.Stderr, "soak: -without %s: there are %s\n", name, strings.Join(actorNames(), ", "))
			os.Exit(2)
		}
	}
	if flag.NArg() > 0 || o.minutes <= 0 {
		fmt.Fprintln(os.Stderr, "soak: -minutes above 0, and no arguments")
		os.Exit(2)
	}
	if o.seed == 0 {
		o.seed = uint64(time.Now().UnixNano()) % 1e9
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintf(os.Stderr, "soak: FAILED: %v\nsoak: replay with -minutes %g -seed %d\n", err, o.minutes, o.seed)
		os.Exit(1)
	}
}

// run is one soak.
func run(ctx context.Context, o options) (err error) {
	begin := time.Now()
	s, err := newSoak(o)
	if err != nil {
		return err
	}
	fmt.Printf("soak: seed %d, %g minutes, below %s\n", o.seed, o.minutes, s.dir)
	defer func() {
		s.close()
		if err != nil || o.keep {
			fmt.Fprintf(os.Stderr, "soak: kept %s: postoffice/, mail/, log, schedule\n", s.dir)
			return
		}
		err = os.RemoveAll(s.dir)
	}()
	if err := s.mail.Start(); err != nil {
		return fmt.Errorf("start: %w", err)
	}
	if err := s.awaitScheduler(); err != nil {
		return err
	}
	if s.atStart, err = s.settledUse(ctx, 10*time.Second, func(*use) bool { return true }); err != nil {
		return err
	}
	s.load(ctx, time.Duration(o.minutes*float64(time.Minute)))
	if ctx.Err() != nil {
		return errors.New("interrupted")
	}
	loaded := time.Since(begin)
	err = s.finish(ctx)
	fmt.Print(s.summary(loaded, time.Since(begin)))
	return err
}

// finish drains the system and compares.
func (s *soak) finish(ctx context.Context) error {
	drained := s.drain(ctx)
	problems := slices.Concat(s.broken(), s.panics(), s.books.compare())
	if drained == nil {
		s.atEnd, drained = s.settledUse(ctx, 30*time.Second, func(u *use) bool { return len(s.atStart.flat(u)) == 0 })
	}
	if drained == nil {
		problems = append(problems, s.atStart.flat(s.atEnd)...)
		drained = s.examine()
	}
	if len(problems) == 0 {
		return drained
	}
	const shown = 40
	for i, p := range problems {
		if i == shown {
			fmt.Fprintf(os.Stderr, "soak: and %d more\n", len(problems)-shown)
			break
		}
		fmt.Fprintln(os.Stderr, "soak:", p)
	}
	return errors.Join(fmt.Errorf("%d mismatches", len(problems)), drained)
}

// kept makes the directory of the run.
func (o options) kept() (string, error) {
	if o.dir == "" {
		dir, err := os.MkdirTemp("", "soak-")
		if err != nil {
			return "", err
		}
		// Local users' mail is theirs when we are root.
		return dir, os.Chmod(dir, 0o755)
	}
	dir, err := filepath.Abs(o.dir)
	if err != nil {
		return "", err
	}
	if list, err := os.ReadDir(dir); err == nil && len(list) > 0 {
		return "", fmt.Errorf("%s is not empty", dir)
	}
	return dir, os.MkdirAll(dir, 0o755)
}
