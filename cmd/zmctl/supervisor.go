package main

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/urfave/cli/v2"

	"zmailer/internal/run/config"
	"zmailer/internal/run/machine"
)

// longestPause is how many times the first pause a pause doubles up to, and a life
// must be long to set it back.
const longestPause = 60

// supervisor keeps daemons running and stops them in order.
type supervisor struct {
	log         *slog.Logger
	out, err    io.Writer // of the daemons
	env         []string
	stopTimeout time.Duration
	pause       time.Duration // before a daemon is started again for the first time
	now         func() time.Time
	after       func(time.Duration) <-chan time.Time

	mu      sync.Mutex
	daemons []*daemon // in the order of stopping; a place gets another one when it is started by a person
	over    bool      // nothing is started any more
	asked   func()    // ends run in order, for a person; nil: nobody can ask
}

// daemon is one program and, while it lives, its process.
type daemon struct {
	name, path string
	args       []string
	first      []string      // more arguments, of its first start alone
	stop       chan struct{} // closed: do not start it again
	done       chan struct{} // closed: it has ended and is not started again

	mu       sync.Mutex
	process  *os.Process // nil: it does not run
	stopping bool
	state    daemonState
	changed  chan struct{} // closed and replaced when state changes
}

func newDaemon(name, path string, args ...string) *daemon {
	return &daemon{name: name, path: path, args: args, stop: make(chan struct{}), done: make(chan struct{}),
		state: daemonState{Daemon: name}, changed: make(chan struct{})}
}

// errStopping means that a daemon must not be started any more.
var errStopping = errors.New("stopping")

// run returns when all daemons have ended: nil after ctx was done, or an exit code
// of config.ExitConfig if one of them cannot use its configuration at the first start.
func (s *supervisor) run(ctx context.Context) error {
	fatal := make(chan *daemon, len(s.daemons))
	s.mu.Lock()
	for _, d := range slices.Backward(s.daemons) {
		go s.keep(d, fatal)
	}
	s.mu.Unlock()
	var err error
	select {
	case <-ctx.Done():
		s.log.Info("stopping")
	case d := <-fatal:
		s.log.Error("stopping", "reason", d.name+" cannot use its configuration")
		err = cli.Exit(d.name+" cannot use its configuration; what it said stands above", config.ExitConfig)
	}
	s.mu.Lock()
	s.over = true
	list := slices.Clone(s.daemons)
	s.mu.Unlock()
	for _, d := range list {
		s.end(d)
	}
	s.log.Info("stopped")
	return err
}

// keep starts a daemon whenever it does not run, until it is to stop or its first start
// ends with config.ExitConfig. Later ones do not end the others: a slip in scheduler.conf
// that a scheduler meets when it is started again must not keep mail from coming in.
//
// The kernel sends a child its parent's-death signal when the thread that made it
// ends (prctl(2)), so this goroutine keeps its thread to itself; the thread ends
// with the goroutine, when no child of it is left.
func (s *supervisor) keep(d *daemon, fatal chan<- *daemon) {
	runtime.LockOSThread()
	defer close(d.done)
	pause := s.pause
	for worked := false; ; {
		begin := s.now()
		cmd, err := s.start(d)
		if errors.Is(err, errStopping) {
			return
		}
		if err == nil {
			s.log.Info("daemon-started", "daemon", d.name, "pid", cmd.Process.Pid)
			err = cmd.Wait()
		}
		life := s.now().Sub(begin)
		if stopping := d.ended(reason(err)); stopping {
			s.log.Info("daemon-ended", "daemon", d.name, "reason", reason(err))
			return
		}
		if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && exit.ExitCode() == config.ExitConfig {
			if !worked {
				s.log.Error("daemon-ended", "daemon", d.name, "reason", reason(err))
				fatal <- d
				return
			}
		} else {
			worked = true
		}
		if life >= longestPause*s.pause {
			pause = s.pause
		}
		s.log.Warn("daemon-ended", "daemon", d.name, "reason", reason(err), "took", life.Round(time.Millisecond), "again", pause)
		select {
		case <-s.after(pause):
		case <-d.stop:
			return
		}
		pause = min(2*pause, longestPause*s.pause)
	}
}

func reason(err error) string {
	if err == nil {
		return "exit status 0"
	}
	return err.Error()
}

// start starts the process unless the daemon is to stop.
func (s *supervisor) start(d *daemon) (*exec.Cmd, error) {
	cmd := exec.Command(d.path, append(slices.Clone(d.args), d.first...)...)
	cmd.Env, cmd.Stdout, cmd.Stderr = s.env, s.out, s.err
	cmd.SysProcAttr = &syscall.SysProcAttr{
		// A session of its own: Ctrl-C reaches zmctl alone, which stops them in order, and a
		// daemon that somebody has taken over cannot type into root's terminal (TIOCSTI).
		Setsid: true,
		// Crash: when zmctl dies the kernel kills its daemons, so that a new zmctl finds
		// neither a second scheduler nor a listener on its port.
		Pdeathsig: syscall.SIGKILL,
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.stopping {
		return nil, errStopping
	}
	if err := machine.Start(cmd); err != nil {
		return nil, err
	}
	d.process, d.first = cmd.Process, nil
	d.began(cmd.Process.Pid)
	return cmd, nil
}

// ended notes that the process is gone and tells whether that was wanted.
func (d *daemon) ended(how string) (stopping bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.process = nil
	d.state = daemonState{Daemon: d.name, Starts: d.state.Starts, Last: how, Stopped: d.stopping, ends: d.state.ends + 1}
	d.tell()
	return d.stopping
}

// signal sends to the process if there is one. With stop it is not started again.
func (d *daemon) signal(sig os.Signal, stop bool) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if stop && !d.stopping {
		d.stopping = true
		close(d.stop)
		if d.process == nil { // in its pause
			d.state.Stopped, d.state.ends = true, d.state.ends+1
			d.tell()
		}
	}
	if d.process == nil {
		return nil
	}
	if err := d.process.Signal(sig); !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	return nil
}

// ends tells whether it was told to end.
func (d *daemon) ends() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.stopping
}

// end asks a daemon to finish, waits, and kills it after stopTimeout (A17).
func (s *supervisor) end(d *daemon) {
	if err := d.signal(syscall.SIGTERM, true); err != nil {
		s.log.Error("signal", "daemon", d.name, "reason", err)
	}
	select {
	case <-d.done:
		return
	case <-s.after(s.stopTimeout):
	}
	s.log.Warn("daemon-killed", "daemon", d.name, "reason", "it has not ended", "took", s.stopTimeout)
	if err := d.signal(syscall.SIGKILL, true); err != nil {
		s.log.Error("signal", "daemon", d.name, "reason", err)
	}
	<-d.done
}
