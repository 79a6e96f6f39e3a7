package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"github.com/urfave/cli/v2"

	"zmailer/internal/disk/durable"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/config"
	"zmailer/internal/run/logfile"
	"zmailer/internal/run/logging"
)

// backgroundFlag is what zmctl start gives to the zmctl run that it starts.
const backgroundFlag = "background"

// run is one zmctl run: its supervisor, its log file, its lock and its control socket.
type run struct {
	s       *supervisor
	log     *logfile.File // nil: standard error
	po      *postoffice.PostOffice
	release func() error // gives the lock back; nil: it could not be taken
	control *control
	unready func()
}

// newRun opens the log, and takes the place of the one zmctl run of this postoffice.
func newRun(c *cli.Context, settings *config.Config) (r *run, err error) {
	r = &run{unready: func() {}, s: &supervisor{
		out: c.App.Writer, err: c.App.ErrWriter, env: environment(settings), stopTimeout: c.Duration("stop-timeout"),
		pause: max(c.Duration("restart-pause"), time.Millisecond), now: time.Now, after: time.After,
	}}
	defer func() {
		if err != nil {
			r.end()
		}
	}()
	if r.po, _, err = open(c); err != nil {
		return r, err
	}
	r.release, err = exclusiveRun(c.Context, r.po)
	if errors.Is(err, durable.ErrLocked) {
		return r, err
	}
	trouble := err // a full disk, say: mail must go out though nobody can tell us anything
	if err = r.openLog(c, settings); err != nil {
		return r, err
	}
	r.s.log, err = logging.New(r.s.err, settings.String("LOG", ""), settings.String("LOGLEVEL", ""), "zmctl")
	if err != nil {
		return r, cli.Exit(err, config.ExitConfig)
	}
	if trouble == nil {
		trouble = r.listen(c, settings.PostOffice())
	}
	if trouble != nil {
		r.s.log.Warn("control-trouble", "reason", trouble, "advice", "zmctl start, stop, restart and status cannot reach this zmctl run; signals can")
	}
	env, unready := r.s.listenReady()
	if r.unready = unready; env != "" {
		r.s.env = append(r.s.env, env)
	}
	return r, nil
}

// openLog opens the log file, if one is set, for us and the daemons.
func (r *run) openLog(c *cli.Context, settings *config.Config) (err error) {
	path := settings.String("LOGFILE", "")
	if name := c.String("log-file"); name != "" {
		path = name
	}
	if path == "" {
		return nil
	}
	lost := func(lines int) []byte {
		var b bytes.Buffer
		// Format and level are checked before the first line can be lost.
		log, err := logging.New(&b, settings.String("LOG", ""), "", "zmctl")
		if err == nil {
			log.Error("log-lost", "lines", lines)
		}
		return b.Bytes()
	}
	if r.log, err = logfile.Open(path, ownLog(path, settings.PostOffice()), lost); err != nil {
		return settings.Invalid("LOGFILE", "cannot be used", err)
	}
	r.s.out, r.s.err = r.log.In(), r.log.In()
	return nil
}

func (r *run) logPath() string {
	if r.log == nil {
		return ""
	}
	return r.log.Path()
}

// runLockGrace is how long the lock of another zmctl run is waited for: one that was
// killed while it started a daemon leaves it to that process until its exec(2).
const runLockGrace = time.Second

// exclusiveRun takes the lock of the one zmctl run.
func exclusiveRun(ctx context.Context, po *postoffice.PostOffice) (release func() error, err error) {
	end := time.NewTimer(runLockGrace)
	defer end.Stop()
	again := time.NewTicker(10 * time.Millisecond)
	defer again.Stop()
	for {
		release, err = po.Exclusive("zmctl")
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

// listen makes the control socket.
func (r *run) listen(c *cli.Context, dir string) error {
	l, err := listenControl(dir)
	if err != nil {
		return err
	}
	r.control = &control{s: r.s, l: l, log: r.log, since: time.Now(), background: c.Bool(backgroundFlag)}
	return nil
}

// serve keeps the daemons until ctx is done, a signal comes, or a person says stop.
func (r *run) serve(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	k := r.control
	if k == nil {
		k = &control{s: r.s, log: r.log}
	}
	r.s.asked, k.ctx = cancel, ctx
	// When it has hung up it is none any more.
	k.tty = terminal(os.Stdin) || terminal(os.Stderr)
	if k.l != nil {
		go k.serve()
	}
	hints := make(chan os.Signal, 1)
	signal.Notify(hints, syscall.SIGUSR1)
	if !signal.Ignored(syscall.SIGHUP) { // as nohup(1) has it
		signal.Notify(hints, syscall.SIGHUP)
	}
	defer signal.Stop(hints)
	go func() {
		for {
			select {
			case <-ctx.Done():
				return
			case sig := <-hints:
				k.told(sig)
			}
		}
	}()
	return r.s.run(ctx)
}

// told does what a signal asks for.
func (k *control) told(sig os.Signal) {
	switch {
	case sig == syscall.SIGUSR1:
		_ = k.reopen() // it has logged what is wrong
	case k.tty:
		k.s.asked() // the terminal has hung up
	default:
		if err := k.reload(); err != nil {
			k.s.log.Error("signal", "daemon", "scheduler", "reason", err)
		}
	}
}

// end gives back what newRun has taken.
func (r *run) end() {
	r.unready()
	if r.s.log != nil {
		logging.Flush(r.s.log)
	}
	if r.control != nil {
		// Crash: a socket that nobody serves; the next zmctl run takes its place.
		_ = r.po.FS().Remove(controlSocket)
		_ = r.control.l.Close()
	}
	if r.release != nil {
		_ = r.release() // the kernel does it if this cannot
	}
	if r.po != nil {
		_ = closeFS(r.po)
	}
	if r.log != nil {
		_ = r.log.Close() // there is nowhere to tell
	}
}

// checkDaemons refuses names that are no daemon's.
func checkDaemons(names []string) error {
	for _, name := range names {
		if !slices.Contains(daemonNames(), name) {
			return cli.Exit(name+" is no daemon: they are smtpserver, router and scheduler", config.ExitUsage)
		}
	}
	return nil
}
