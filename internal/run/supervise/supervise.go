// Package supervise keeps a few programs running: it starts them, starts them again when
// they end, and stops them in order. zmctl run is built on it where no service manager
// does the same.
//
// It owns nothing on disk. When the supervising process dies, the kernel kills its
// programs (prctl(2), PR_SET_PDEATHSIG), so that a new one finds neither a second
// scheduler nor a listener on its port.
//
// Diagnostics: a program that exits with config.ExitConfig at its first start is not started
// again: every other start would end alike. The others go on, unless Strict is set; Run returns
// a *ConfigError when all of them have ended so, with Strict at the first. Start returns ErrStopping while
// everything is being stopped, and an error that names each program that ended instead of
// becoming ready.
package supervise

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"time"

	"zmailer/internal/run/backoff"
	"zmailer/internal/run/config"
	"zmailer/internal/run/machine"
)

const (
	// longestPause limits the pause before a restart, as a multiple of the first pause. A
	// program that ran for that long begins with the first pause again.
	longestPause = 60
	// readyAfter is how long a program must run to count as ready if it does not report so.
	readyAfter = time.Second
	// ReadyTimeout is how long Start and AwaitReady wait for programs.
	ReadyTimeout = 30 * time.Second
)

// ErrStopping means that everything is being stopped and nothing is started any more.
var ErrStopping = errors.New("stopping")

// ConfigError names a program that cannot use its configuration.
type ConfigError struct{ Program string }

func (e *ConfigError) Error() string { return e.Program + " cannot use its configuration" }

// Supervisor runs programs. Its exported fields are set before Run.
type Supervisor struct {
	Log         *slog.Logger
	Out, Err    io.Writer // of the programs
	Env         []string
	StopTimeout time.Duration // SIGTERM, then SIGKILL after this time
	Pause       time.Duration // before the first restart of a program
	Strict      bool          // a program that exits with config.ExitConfig at its first start stops all

	programs []*program // in the order of stopping
	now      func() time.Time
	after    func(time.Duration) <-chan time.Time

	mu   sync.Mutex
	over bool // nothing is started any more
}

// New returns a Supervisor with nothing to run.
func New() *Supervisor {
	return &Supervisor{StopTimeout: 30 * time.Second, Pause: time.Second, now: time.Now, after: time.After}
}

// Add adds a program. Programs are stopped in the order in which they were added, and
// started in the opposite order. The arguments in first are passed at the first start only.
func (s *Supervisor) Add(name, path string, args, first []string) {
	s.programs = append(s.programs, newProgram(name, path, args, first))
}

// program is one supervised program and, while it runs, its process. Its goroutine, keep,
// alone starts processes; others set wanted and wait for a change.
type program struct {
	name, path string
	args       []string
	first      []string
	wake       chan struct{} // ends the pause before a restart

	mu      sync.Mutex
	wanted  bool
	worked  bool        // a start since wanted was set did not fail with config.ExitConfig
	process *os.Process // nil: it does not run
	state   State
	changed chan struct{} // closed and replaced when state or wanted changes
}

func newProgram(name, path string, args, first []string) *program {
	return &program{name: name, path: path, args: args, first: first, wanted: true, wake: make(chan struct{}, 1),
		state: State{Daemon: name}, changed: make(chan struct{})}
}

// Run starts everything and returns when everything has ended: nil after ctx is done, a
// *ConfigError if no program can use its configuration at its first start, or with Strict if
// one cannot.
func (s *Supervisor) Run(ctx context.Context) error {
	fatal := make(chan *program, len(s.programs))
	ended := make(chan struct{})
	var keepers sync.WaitGroup
	for _, p := range slices.Backward(s.programs) {
		keepers.Go(func() { s.keep(p, ended, fatal) })
	}
	var err error
	for gaveUp := 0; err == nil; {
		select {
		case <-ctx.Done():
			s.Log.Info("stopping")
		case p := <-fatal:
			// The others go on: mail that can be taken, routed or delivered is.
			if gaveUp++; gaveUp < len(s.programs) && !s.Strict {
				s.Log.Error("daemon-refused", "daemon", p.name, "reason", &ConfigError{p.name}, "advice", "correct what its message above names, then zmctl start "+p.name)
				continue
			}
			err = &ConfigError{p.name}
			s.Log.Error("stopping", "reason", err)
		}
		break
	}
	s.mu.Lock()
	s.over = true
	s.mu.Unlock()
	for _, p := range s.programs {
		s.stop(p)
	}
	close(ended)
	keepers.Wait()
	s.Log.Info("stopped")
	return err
}

// keep starts a program whenever it is wanted and does not run.
//
// The kernel sends a child its parent's-death signal when the thread that created it ends
// (prctl(2)), so this goroutine keeps its thread until no child of it is left.
func (s *Supervisor) keep(p *program, ended <-chan struct{}, fatal chan<- *program) {
	runtime.LockOSThread()
	pause := s.Pause
	for {
		st, wanted, changed := p.now()
		if !wanted {
			select {
			case <-changed:
			case <-ended:
				return
			}
			pause = s.Pause
			continue
		}
		begin := s.now()
		cmd, err := s.start(p)
		if errors.Is(err, ErrStopping) {
			continue
		}
		if err == nil {
			s.Log.Info("daemon-started", "daemon", p.name, "pid", cmd.Process.Pid)
			err = cmd.Wait()
		}
		life := s.now().Sub(begin)
		reason := "exit status 0"
		if err != nil {
			reason = err.Error()
		}
		exit := (*exec.ExitError)(nil)
		badConfig := errors.As(err, &exit) && exit.ExitCode() == config.ExitConfig
		stopped, gaveUp := p.ended(reason, badConfig)
		switch {
		case stopped:
			s.Log.Info("daemon-ended", "daemon", p.name, "reason", reason)
			continue
		case gaveUp:
			s.Log.Error("daemon-ended", "daemon", p.name, "reason", reason)
			if st.ends == 0 {
				fatal <- p
			}
			continue
		}
		if life >= longestPause*s.Pause {
			pause = s.Pause
		}
		s.Log.Warn("daemon-ended", "daemon", p.name, "reason", reason, "took", life.Round(time.Millisecond), "again", pause)
		select {
		case <-s.after(pause):
			pause = backoff.Next(pause, s.Pause, longestPause*s.Pause)
		case <-p.wake:
			pause = s.Pause
		}
	}
}

// start starts the process unless the program is no longer wanted.
func (s *Supervisor) start(p *program) (*exec.Cmd, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	cmd := exec.Command(p.path, append(slices.Clone(p.args), p.first...)...)
	cmd.Env, cmd.Stdout, cmd.Stderr = s.Env, s.Out, s.Err
	cmd.SysProcAttr = &syscall.SysProcAttr{
		// A session of its own: Ctrl-C reaches the supervisor only, which stops programs in
		// order, and a compromised daemon cannot type into root's terminal (TIOCSTI).
		Setsid: true,
		// Crash: when the supervisor dies the kernel kills its programs.
		Pdeathsig: syscall.SIGKILL,
	}
	if !p.wanted {
		return nil, ErrStopping
	}
	if err := machine.Start(cmd); err != nil {
		return nil, err
	}
	p.process, p.first = cmd.Process, nil
	select {
	case <-p.wake: // it came too late to shorten the last pause
	default:
	}
	p.started(cmd.Process.Pid)
	return cmd, nil
}

// ended records that the process is gone. stopped reports that this was wanted; gaveUp that
// the program cannot use its configuration and is not started again. A program that worked
// once is started again in that case too: an error in scheduler.conf that a scheduler meets
// after a crash must not keep mail from coming in.
func (p *program) ended(reason string, badConfig bool) (stopped, gaveUp bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.process = nil
	stopped = !p.wanted
	p.worked = p.worked || !badConfig
	gaveUp = !stopped && !p.worked
	if gaveUp {
		p.wanted = false
	}
	p.state = State{Daemon: p.name, Starts: p.state.Starts, Last: reason, Stopped: stopped, ends: p.state.ends + 1}
	p.notify()
	return stopped, gaveUp
}

// Signal sends a signal to a program if it runs.
func (s *Supervisor) Signal(name string, sig os.Signal) error {
	p := s.find(name)
	if p == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.process == nil {
		return nil
	}
	return signal(p.process, sig)
}

// signal sends a signal to a process that may have ended.
func signal(process *os.Process, sig os.Signal) error {
	if err := process.Signal(sig); !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	return nil
}

// Stop stops programs in their order, all of them if none is named.
func (s *Supervisor) Stop(names []string) {
	for _, p := range s.named(names) {
		s.stop(p)
	}
}

// stop asks a program to finish, waits, and kills it after StopTimeout (A17). It concerns the
// process that runs now: another Start may begin a new one as soon as this one has ended.
func (s *Supervisor) stop(p *program) {
	p.mu.Lock()
	process, ends := p.process, p.state.ends
	if p.wanted {
		p.wanted = false
		if process == nil { // in its pause
			p.state.Stopped, p.state.ends = true, p.state.ends+1
			select {
			case p.wake <- struct{}{}:
			default:
			}
		}
		p.notify()
	}
	p.mu.Unlock()
	if process == nil {
		return
	}
	if err := signal(process, syscall.SIGTERM); err != nil {
		s.Log.Error("signal", "daemon", p.name, "reason", err)
	}
	killed := s.after(s.StopTimeout)
	for {
		st, _, changed := p.now()
		if st.ends != ends {
			return
		}
		select {
		case <-changed:
		case <-killed:
			s.Log.Warn("daemon-killed", "daemon", p.name, "reason", "it has not ended", "took", s.StopTimeout)
			if err := signal(process, syscall.SIGKILL); err != nil {
				s.Log.Error("signal", "daemon", p.name, "reason", err)
			}
			killed = nil
		}
	}
}

// Start starts the programs that do not run, all of them if none is named, and waits until
// they are ready. One that waits for its restart is started at once.
func (s *Supervisor) Start(ctx context.Context, names []string) error {
	type begun struct {
		*program
		ends int
	}
	var list []begun
	for _, p := range slices.Backward(s.named(names)) {
		if _, wanted, _ := p.now(); !wanted {
			s.stop(p) // it may still be finishing; others can ask for states meanwhile
		}
		s.mu.Lock()
		over := s.over
		if !over {
			p.want()
		}
		s.mu.Unlock()
		if over {
			return fmt.Errorf("start %s: %w", p.name, ErrStopping)
		}
		st, _, _ := p.now()
		list = append(list, begun{p, st.ends})
	}
	ctx, cancel := context.WithTimeout(ctx, ReadyTimeout)
	defer cancel()
	var errs []error
	for _, p := range list {
		errs = append(errs, p.awaitReady(ctx, p.ends))
	}
	return errors.Join(errs...)
}

// want has the program started now unless it runs.
func (p *program) want() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.process != nil {
		return
	}
	if !p.wanted {
		// A configuration that cannot be used ends this start, not the other programs.
		p.wanted, p.worked = true, false
		if p.state.Stopped {
			p.state.Starts, p.state.Last, p.state.Stopped = 0, "", false
		}
		p.notify()
		return
	}
	if p.state.Starts > 0 {
		select {
		case p.wake <- struct{}{}:
		default:
		}
	}
}

// named returns the programs of these names, in the order of stopping; all if there are none.
func (s *Supervisor) named(names []string) []*program {
	if len(names) == 0 {
		return s.programs
	}
	var list []*program
	for _, p := range s.programs {
		if slices.Contains(names, p.name) {
			list = append(list, p)
		}
	}
	return list
}

func (s *Supervisor) find(name string) *program {
	if list := s.named([]string{name}); len(list) > 0 {
		return list[0]
	}
	return nil
}

// Stopping reports whether everything is being stopped.
func (s *Supervisor) Stopping() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.over
}
