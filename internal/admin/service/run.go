package service

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"zmailer/internal/disk/durable"
	"zmailer/internal/disk/lastgood"
	"zmailer/internal/disk/socket"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/config"
	"zmailer/internal/run/logfile"
	"zmailer/internal/run/logging"
	"zmailer/internal/run/supervise"
)

// Options are those of one zmctl run.
type Options struct {
	Settings   *config.Config
	PostOffice *postoffice.PostOffice
	LogFile    string   // instead of LOGFILE
	LogFlags   []string // for the daemons
	Background bool     // started by zmctl start
	Strict     bool     // the first start refuses unfinished files in public/
	Terminal   bool     // started on a terminal: its hang-up stops all
	// Pause precedes the first restart of a daemon; StopTimeout is the time between SIGTERM
	// and SIGKILL.
	Pause, StopTimeout time.Duration
	Out, Err           io.Writer // without a log file
}

// Run is one zmctl run: the supervisor of a postoffice's daemons, with its log file, its
// lock and its control socket.
type Run struct {
	s          *supervise.Supervisor
	po         *postoffice.PostOffice
	log        *logfile.File // nil: standard error
	background bool
	terminal   bool
	since      time.Time
	stop       context.CancelFunc // ends Serve in order
	listener   *net.UnixListener  // nil: there is no control socket
	ends       []func()
}

// NewRun opens the log and takes the lock that only one zmctl run of a postoffice can have;
// durable.ErrLocked: another process has it. Close ends it.
func NewRun(ctx context.Context, o Options) (r *Run, err error) {
	r = &Run{s: supervise.New(), po: o.PostOffice, background: o.Background, terminal: o.Terminal, since: time.Now()}
	defer func() {
		if err != nil {
			r.Close()
		}
	}()
	for _, name := range Daemons() {
		path, err := Program(name)
		if err != nil {
			return r, err
		}
		var first []string
		if o.Strict && name != "smtpserver" {
			// A daemon that is started again leaves no mail waiting for an operator.
			first = []string{"--strict"}
		}
		r.s.Add(name, path, o.LogFlags, first)
	}
	dir := o.Settings.PostOffice()
	r.s.Env, r.s.StopTimeout, r.s.Pause = Environment(o.Settings), o.StopTimeout, max(o.Pause, time.Millisecond)
	r.s.Out, r.s.Err, r.s.Strict = o.Out, o.Err, o.Strict
	release, err := lock(ctx, o.PostOffice)
	if errors.Is(err, durable.ErrLocked) {
		return r, err
	}
	unreachable := err // a full disk, for instance: mail must go out even if no request can come in
	if err == nil {
		r.ends = append(r.ends, func() { _ = release() }) // the kernel does it if this cannot
	}
	if err := r.openLog(o); err != nil {
		return r, err
	}
	if r.s.Log, err = logging.New(r.s.Err, o.Settings.LogFormat(), o.Settings.String("LOGLEVEL", ""), "zmctl"); err != nil {
		return r, o.Settings.Invalid("LOG", "or LOGLEVEL cannot be used", err)
	}
	r.ends = append(r.ends, func() { logging.Flush(r.s.Log) })
	lastgood.Follow(o.Settings, Supervisor, lastgood.Use(o.Settings, Supervisor, r.s.Log), r.s.Log, nil) // it never reads again: zmctl reload compares
	if unreachable == nil {
		r.listener, unreachable = socket.Listen(filepath.Join(dir, ControlSocket), 0o600)
	}
	if unreachable != nil {
		r.s.Log.Warn("control-trouble", "reason", unreachable, "advice", "zmctl start, stop, restart and status cannot reach this zmctl run; signals can")
	} else {
		r.ends = append(r.ends, func() {
			// Crash: a socket that no process serves; the next zmctl run takes its place.
			_ = r.po.FS().Remove(ControlSocket)
			_ = r.listener.Close()
		})
	}
	r.ends = append(r.ends, r.s.ListenReady())
	return r, nil
}

// Close undoes what NewRun did.
func (r *Run) Close() {
	for i := len(r.ends) - 1; i >= 0; i-- {
		r.ends[i]()
	}
	r.ends = nil
}

// openLog opens the log file, if one is set, for zmctl run and the daemons.
func (r *Run) openLog(o Options) (err error) {
	path := o.LogFile
	if path == "" {
		path = o.Settings.String("LOGFILE", "")
	}
	if path == "" {
		return nil
	}
	lost := func(lines int) []byte {
		var b bytes.Buffer
		// Format and level are checked before the first line can be lost.
		log, err := logging.New(&b, o.Settings.LogFormat(), "", "zmctl")
		if err == nil {
			log.Error("log-lost", "lines", lines)
		}
		return b.Bytes()
	}
	if r.log, err = logfile.Open(path, inPostoffice(path, o.Settings.PostOffice()), lost); err != nil {
		return o.Settings.Invalid("LOGFILE", "cannot be used", err)
	}
	r.s.Out, r.s.Err = r.log.In(), r.log.In()
	r.ends = append(r.ends, func() { _ = r.log.Close() }) // there is nowhere to report to
	return nil
}

// inPostoffice reports whether a log is in the postoffice itself, where its owner may have
// placed any name, and this process may be root.
func inPostoffice(path, dir string) bool { return filepath.Dir(path) == dir }

// LogPath returns the name of the log file; "" for standard error.
func (r *Run) LogPath() string {
	if r.log == nil {
		return ""
	}
	return r.log.Path()
}

// lockGrace is how long the lock of another zmctl run is waited for: one that was killed
// while it started a daemon leaves it to that process until its exec(2).
const lockGrace = time.Second

func lock(ctx context.Context, po *postoffice.PostOffice) (release func() error, err error) {
	end := time.NewTimer(lockGrace)
	defer end.Stop()
	again := time.NewTicker(10 * time.Millisecond)
	defer again.Stop()
	for {
		release, err = po.Owners.Exclusive("zmctl")
		if !errors.Is(err, durable.ErrLocked) {
			return release, err
		}
		select {
		case <-again.C:
		case <-end.C:
			return nil, err
		case <-ctx.Done():
			return nil, err
		}
	}
}

// Serve keeps the daemons running until ctx is done, a signal comes, or an operator stops
// them. Its error is a *supervise.ConfigError.
func (r *Run) Serve(ctx context.Context) error {
	ctx, r.stop = context.WithCancel(ctx)
	defer r.stop()
	if r.listener != nil {
		go r.accept(ctx, r.listener)
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGUSR1)
	if !signal.Ignored(syscall.SIGHUP) { // as nohup(1) has it
		signal.Notify(signals, syscall.SIGHUP)
	}
	defer signal.Stop(signals)
	go func() {
		for {
			select {
			case <-ctx.Done():
				return
			case sig := <-signals:
				r.handle(sig)
			}
		}
	}()
	return r.s.Run(ctx)
}

func (r *Run) handle(sig os.Signal) {
	switch {
	case sig == syscall.SIGUSR1:
		_ = r.reopen() // it has logged its error
	case r.terminal:
		r.stop() // the terminal has hung up
	default:
		if err := r.reload(); err != nil {
			r.s.Log.Error("signal", "reason", err)
		}
	}
}

// reload reopens the log and has the daemons read their configuration.
func (r *Run) reload() error {
	return errors.Join(r.reopen(), r.hangUp(Daemons()))
}

// hangUp has daemons read their configuration.
func (r *Run) hangUp(names []string) (err error) {
	for _, name := range names {
		err = errors.Join(err, r.s.Signal(name, syscall.SIGHUP))
	}
	return err
}

// reopen continues in the log file that has taken the place of a rotated one.
func (r *Run) reopen() error {
	if r.log == nil {
		return nil
	}
	if err := r.log.Reopen(); err != nil {
		r.s.Log.Error("log-not-reopened", "reason", err, "advice", "the old file is written still; mend what reason names, then zmctl reload")
		return err
	}
	r.s.Log.Info("log-reopened", "file", r.log.Path())
	return nil
}
