package kill

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"zmailer/internal/disk/durable"
	"zmailer/internal/postoffice"
	"zmailer/internal/postoffice/verified"
	"zmailer/test/inject"
	"zmailer/test/load"
	"zmailer/test/suite"
)

// patience is how long a system may take to mend one kill: every wait in the product
// that a death can lead to is shorter by far.
const patience = 45 * time.Second

var errTooLong = errors.New("too long for one kill")

// lane is one system that is killed again and again.
type lane struct {
	suite   *suite.Suite
	load    *load.Load
	inject  *inject.Injector
	freezer string // a file that is left alone
	trials  int
	broken  bool // the last trial did not drain

	tokens map[string]bool // findings that belong to trials before
	doubts int             // in-doubt events of trials before

	mu    sync.Mutex // what follows is used by the injector as well
	armed []Target   // the first one is waited for
	count int        // how often its step was met
	hits  []time.Time
	whole chan struct{} // closed when the whole system was killed
	steps map[inject.Pair]bool
}

// newLane starts a system.
func newLane(bin, dir string) (*lane, error) {
	s, l, err := prepared(bin, dir)
	if err != nil {
		return nil, err
	}
	ln := &lane{suite: s, load: l, tokens: map[string]bool{}}
	ln.inject = &inject.Injector{Classes: classes(s), OnCall: ln.onCall}
	s.Launch = func(cmd *exec.Cmd) error { fast(cmd); return ln.inject.Start(cmd) }
	err = ln.freeze()
	if err == nil {
		err = s.Start()
	}
	if err != nil {
		return nil, errors.Join(err, ln.close())
	}
	return ln, nil
}

// frozenText is a message that somebody has put aside.
const frozenText = "from <bob@mta.example>\nto <alice@mta.example>\nenv-end\nSubject: frozen\n\nx\n"

// freeze plants a message in the freezer, which no daemon may touch.
func (l *lane) freeze() error {
	l.freezer = postoffice.Freezer + "/1.policy"
	return os.WriteFile(filepath.Join(l.suite.PostOffice(), l.freezer), []byte(frozenText), 0o600)
}

// frozen looks whether it is still there.
func (l *lane) frozen() error {
	b, err := os.ReadFile(filepath.Join(l.suite.PostOffice(), l.freezer))
	if err == nil && string(b) != frozenText {
		err = fmt.Errorf("%s has changed", l.freezer)
	}
	return err
}

// close ends the system at once and leaves its log in its directory.
func (l *lane) close() error {
	l.suite.Kill()
	l.load.Close()
	return errors.Join(l.inject.Close(), os.WriteFile(filepath.Join(l.suite.Dir, "log"), []byte(l.suite.Log()), 0o644))
}

// onCall kills at the step that is armed.
func (l *lane) onCall(c inject.Call) inject.Action {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.steps != nil {
		l.steps[c.Pair()] = true
	}
	if len(l.armed) == 0 || c.Pair() != l.armed[0].Pair {
		return inject.Action{}
	}
	if l.count++; l.count < l.armed[0].Occurrence {
		return inject.Action{}
	}
	t := l.armed[0]
	l.armed, l.count = l.armed[1:], 0
	l.hits = append(l.hits, time.Now())
	if t.Whole {
		l.killAll()
	}
	a := inject.Action{Kill: true}
	if t.Torn {
		a.Part = c.Size / 2
	}
	return a
}

// killAll kills every process of the system at one moment: none of them gets another
// call through while the injector decides this one.
func (l *lane) killAll() {
	list, _ := l.suite.Processes() // who is missed here is ended by the restart
	for _, p := range list {
		_ = p.Kill()
	}
	close(l.whole)
}

// arm prepares a kill.
func (l *lane) arm(t Target) (whole <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.armed, l.count, l.hits = nil, 0, nil
	if t.After != nil {
		l.armed = append(l.armed, *t.After)
	}
	l.armed = append(l.armed, t)
	l.steps = map[inject.Pair]bool{}
	l.whole = make(chan struct{})
	return l.whole
}

// disarm ends a trial: how many kills were made, and which steps were seen.
func (l *lane) disarm() (hits int, steps []inject.Pair) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for p := range l.steps {
		steps = append(steps, p)
	}
	l.armed, l.steps = nil, nil
	return len(l.hits), steps
}

// try makes one kill and has the system mend it.
func (l *lane) try(ctx context.Context, t Target) *Trial {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, errTooLong)
	defer cancel()
	began := time.Now()
	l.trials++
	l.load.StartSubmit, l.load.Ways = nil, nil
	if t.Program == "submit" || t.After != nil && t.After.Program == "submit" {
		l.load.StartSubmit, l.load.Ways = l.inject.Start, []string{load.BySubmit, load.ByUser}
	}
	l.load.StartOperator, l.load.Extra = nil, nil
	if t.Program == load.Operator {
		l.load.StartOperator = l.inject.Start
	}
	if load.Summarises(t.Path) || t.After != nil && load.Summarises(t.After.Path) {
		l.load.Extra = []load.Kind{load.Long}
	}
	trial := &Trial{Target: t, Began: began, Dir: l.suite.Dir}
	err := l.prepare(ctx, t)
	whole := l.arm(t)
	if err == nil {
		err = l.provoke(t)
	}
	if err == nil {
		err = l.work(ctx, trial, whole, l.round(t))
	}
	if t.Phase == Learning {
		err = errors.Join(err, l.learn(ctx, trial, whole))
	}
	trial.Drained = time.Since(began)
	var hits int
	hits, trial.Steps = l.disarm()
	trial.Hit = hits > 0 && (t.After == nil || hits > 1)
	if err == nil {
		err = l.audit(trial)
	}
	trial.Err, l.broken = err, err != nil
	trial.Took = time.Since(began)
	return trial
}

// round returns what has a trial's mail be sent.
func (l *lane) round(t Target) func(ctx context.Context, round int) error {
	switch {
	case t.Program == load.Operator:
		return l.load.Operate
	case t.Phase == Learning:
		return func(ctx context.Context, round int) error {
			return l.load.Send(ctx, round, load.Greylisted, load.Verified)
		}
	}
	return l.load.Round
}

// learn has more be learned until the kill was made, and once more after it: what smtpserver
// learns of clients is written some time later.
func (l *lane) learn(ctx context.Context, trial *Trial, whole <-chan struct{}) error {
	for n, done := 1, false; !done; n++ {
		done = l.killed() || n == mostLearned
		if err := l.work(ctx, trial, whole, func(ctx context.Context, round int) error {
			return l.load.Send(ctx, firstExtra*n+round, load.Greylisted, load.Verified)
		}); err != nil {
			return err
		}
	}
	return l.remembered(trial)
}

// mostLearned is after how many rounds, each of more than a second, all that is learned was
// appended to the files and they were written anew.
const mostLearned = 8

// killed reports whether all kills of the trial were made.
func (l *lane) killed() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.armed) == 0
}

// remembered looks whether the answers of next hops that led to the acceptance of mail are known
// still, and whether no line of theirs is damaged.
func (l *lane) remembered(trial *Trial) error {
	disk, err := durable.NewOS(l.suite.PostOffice())
	if err != nil {
		return err
	}
	defer disk.Close()
	var damage bytes.Buffer
	list, err := verified.Open(disk, verified.Options{Log: slog.New(slog.NewTextHandler(&damage, nil))}).Entries()
	if err != nil {
		return err
	}
	var keys []string
	for _, e := range list {
		keys = append(keys, e.Key)
	}
	for _, to := range l.load.Forgotten(keys) {
		trial.Wrong = append(trial.Wrong, "the answer about "+to+" is forgotten")
	}
	if damage.Len() > 0 {
		trial.Wrong = append(trial.Wrong, damage.String())
	}
	return nil
}

// work sends a round and has it drain, with a new start if all was killed.
func (l *lane) work(ctx context.Context, trial *Trial, whole <-chan struct{}, round func(context.Context, int) error) error {
	sent := make(chan error, 1)
	go func() { sent <- round(ctx, l.trials) }()
	drained := make(chan error, 1)
	wait := func() { drained <- drain(ctx, l.suite) }
	for {
		select {
		case <-whole:
			l.suite.Kill()
			if err := l.suite.Start(); err != nil {
				return err
			}
			whole = nil
		case err := <-sent:
			if err != nil {
				return err
			}
			sent, trial.Sent = nil, time.Since(trial.Began)
			go wait()
		case err := <-drained:
			if err != nil || whole == nil || !l.dead() {
				return err
			}
			go wait()
		}
	}
}

// dead reports whether the whole system was just killed, so that it is to be started.
func (l *lane) dead() bool {
	select {
	case <-l.whole:
		return true
	default:
		return false
	}
}

// prepare lets programs that are to end do something before.
func (l *lane) prepare(ctx context.Context, t Target) error {
	if load.Rewrites(t.Path) {
		// It reads its files at its start.
		return errors.Join(l.load.Damage(), l.load.End("smtpserver"))
	}
	if t.Phase != Stop && (t.After == nil || t.After.Phase != Stop) {
		return nil
	}
	return runRound(ctx, l.suite, l.load, l.trials)
}

// provoke has a program start or end when the step belongs to that.
func (l *lane) provoke(t Target) error {
	phase, program := t.Phase, t.Program
	if t.After != nil {
		phase, program = t.After.Phase, t.After.Program
	}
	if program == "submit" || phase != Start && phase != Stop {
		return nil
	}
	signal := syscall.SIGKILL
	if phase == Start {
		if err := l.forget(program); err != nil {
			return err
		}
	}
	if phase == Stop {
		signal = syscall.SIGTERM
		if strings.HasPrefix(program, "ta-") {
			program = "scheduler" // which ends its agents in order
		}
	}
	list, err := l.suite.Processes()
	if err != nil {
		return err
	}
	for _, p := range list {
		if p.Name != program {
			continue
		}
		if err := syscall.Kill(p.Pid, signal); err != nil && err != syscall.ESRCH {
			return fmt.Errorf("end %s: %w", p.Name, err)
		}
	}
	return nil
}

// forget removes a program's copies of tables, and what the scheduler writes for submit: its next start writes them, which it does only
// if they are not there or differ.
func (l *lane) forget(program string) error {
	list, err := filepath.Glob(filepath.Join(l.suite.PostOffice(), postoffice.LastGood, program, "*"))
	if program == "scheduler" {
		list = append(list, filepath.Join(l.suite.PostOffice(), ".submit"))
	}
	for _, name := range list {
		if rerr := os.Remove(name); rerr != nil && !errors.Is(rerr, os.ErrNotExist) {
			err = errors.Join(err, rerr)
		}
	}
	return err
}

// copies looks whether the last good copies are whole.
func (l *lane) copies(trial *Trial) error {
	list, err := filepath.Glob(filepath.Join(l.suite.PostOffice(), postoffice.LastGood, "*", "[0-9a-f]*"))
	if err != nil || len(list) == 0 {
		return errors.Join(err, errors.New("there are no last good copies"))
	}
	for _, name := range list {
		b, err := os.ReadFile(name)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if strings.HasSuffix(name, ".answer") { // to a reload
			if err != nil || !json.Valid(b) {
				trial.Wrong = append(trial.Wrong, fmt.Sprintf("%s is no whole answer: %.60q %v", name, b, err))
			}
			continue
		}
		head, text, _ := bytes.Cut(b, []byte("\n"))
		var h struct{ Path, SHA256, Reason string }
		err = errors.Join(err, json.Unmarshal(head, &h))
		if sum := sha256.Sum256(text); err != nil || h.Path == "" || hex.EncodeToString(sum[:]) != h.SHA256 && !strings.HasSuffix(name, ".bad") {
			trial.Wrong = append(trial.Wrong, fmt.Sprintf("%s is no whole copy: %.60q %v", name, b, err))
		}
	}
	return nil
}

// audit compares, and keeps for the trial what was not found before.
func (l *lane) audit(trial *Trial) error {
	a, err := l.load.Audit()
	if err != nil {
		return err
	}
	fresh := func(kind string, list []load.Finding) (found []string) {
		for _, f := range list {
			if key := kind + f.Try.Token + f.Where; !l.tokens[key] {
				l.tokens[key] = true
				found = append(found, f.String())
			}
		}
		return found
	}
	trial.Lost = append(fresh("lost", a.Lost), fresh("torn", a.Torn)...)
	trial.Wrong = append(fresh("unwanted", a.Unwanted), fresh("denied", a.Denied)...)
	trial.Duplicated = fresh("duplicated", a.Duplicated)
	for _, f := range a.Repeated {
		if l.tokens["repeated"+f.Try.Token+f.Where] {
			continue
		}
		l.tokens["repeated"+f.Try.Token+f.Where] = true
		// Only SMTP has a moment in which no one can know.
		if strings.HasPrefix(f.Where, "sink") && trial.Target.sends() {
			trial.Again++
		} else {
			trial.Duplicated = append(trial.Duplicated, f.String())
		}
	}
	if err := l.frozen(); err != nil {
		return err
	}
	if err := l.copies(trial); err != nil {
		return err
	}
	for _, name := range a.Orphans {
		if !l.tokens[name] && name != l.freezer {
			l.tokens[name] = true
			trial.Orphans = append(trial.Orphans, name)
		}
	}
	n := 0
	for _, e := range l.suite.Events() {
		if e.Word == "in-doubt" {
			n++
		}
	}
	trial.Doubts, l.doubts = n-l.doubts, n
	return nil
}
