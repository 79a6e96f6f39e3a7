package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"zmailer/internal/postoffice"
	"zmailer/internal/run/logfile"
)

// controlSocket is the name, in the postoffice, of the socket on which zmctl run is told
// what to do. Who may use it are root and the owner of the postoffice.
const controlSocket = ".run"

// wish is what zmctl run is asked, a line of JSON; the answer is one, too.
type wish struct {
	Do      string   `json:"do"` // status, wait, start, stop, restart, reload or reopen
	Daemons []string `json:"daemons,omitempty"`
}

// runAnswer is the answer: how zmctl run and its daemons do afterwards.
type runAnswer struct {
	Pid        int           `json:"pid"`
	Since      time.Time     `json:"since"`
	Background bool          `json:"background,omitempty"` // started by zmctl start
	Log        string        `json:"log,omitempty"`        // LOGFILE
	Daemons    []daemonState `json:"daemons"`
	Ending     bool          `json:"ending,omitempty"` // it is about to end
	Error      string        `json:"error,omitempty"`
}

// control serves the control socket of a supervisor.
type control struct {
	s          *supervisor
	l          *net.UnixListener
	log        *logfile.File // nil: standard error
	since      time.Time
	background bool
	tty        bool // it was started on a terminal
	ctx        context.Context
}

// serve answers until the socket is closed.
func (k *control) serve() {
	for {
		conn, err := k.l.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			// Out of descriptors: whoever asks waits or gives up.
			select {
			case <-time.After(100 * time.Millisecond):
				continue
			case <-k.ctx.Done():
				return
			}
		}
		go k.answer(conn)
	}
}

// wishPatience is how long a client may take to say what it wants.
const wishPatience = 10 * time.Second

func (k *control) answer(conn *net.UnixConn) {
	var w wish
	err := conn.SetDeadline(time.Now().Add(wishPatience))
	if err == nil {
		err = json.NewDecoder(conn).Decode(&w)
	}
	if err == nil {
		err = conn.SetDeadline(time.Time{})
	}
	if err != nil {
		_ = conn.Close() // it has gone, or says nonsense
		return
	}
	if w.Do == "stop" && len(w.Daemons) == 0 {
		// The connection ends with the process: that is the answer. It is held: one that
		// nobody has is closed by the garbage collector.
		k.s.asked()
		_, _ = io.Copy(io.Discard, conn)
		_ = conn.Close()
		return
	}
	st := k.do(w)
	_ = json.NewEncoder(conn).Encode(st) // who has gone does not want it
	_ = conn.Close()
}

// do carries a wish out.
func (k *control) do(w wish) *runAnswer {
	var err error
	switch w.Do {
	case "status":
	case "wait":
		err = k.s.awaitAll(k.ctx)
	case "start", "restart":
		err = k.s.startOnes(k.ctx, w.Daemons, w.Do == "restart")
	case "stop":
		for _, name := range w.Daemons {
			if d := k.s.find(name); d != nil {
				k.s.end(d)
			}
		}
	case "reload":
		err = k.reload()
	case "reopen":
		err = k.reopen()
	default:
		err = errors.New(w.Do + ": this zmctl run does not know that; it may be older")
	}
	st := &runAnswer{Pid: os.Getpid(), Since: k.since, Background: k.background, Daemons: k.s.states(), Ending: k.s.ending()}
	if k.log != nil {
		st.Log = k.log.Path()
	}
	if err != nil {
		st.Error = err.Error()
	}
	return st
}

// reload reopens the log, and has the scheduler read its configuration.
func (k *control) reload() error {
	err := k.reopen()
	if d := k.s.find("scheduler"); d != nil {
		err = errors.Join(err, d.signal(syscall.SIGHUP, false))
	}
	return err
}

// reopen goes on in a log file that has taken the place of a rotated one.
func (k *control) reopen() error {
	if k.log == nil {
		return nil
	}
	if err := k.log.Reopen(); err != nil {
		k.s.log.Error("log-not-reopened", "reason", err, "advice", "the old file is written still; mend what reason names, then zmctl reload")
		return err
	}
	k.s.log.Info("log-reopened", "file", k.log.Path())
	return nil
}

// listenControl makes the socket. The caller holds the lock of the one zmctl run.
func listenControl(dir string) (*net.UnixListener, error) {
	return postoffice.ListenSocket(filepath.Join(dir, controlSocket), 0o600)
}

// errNoRun means that no zmctl run serves a postoffice.
var errNoRun = errors.New("no zmctl run serves this postoffice")

// ask has the zmctl run of a postoffice do something. Of a stop of everything the answer
// is nil, and it has ended.
func ask(ctx context.Context, dir string, w wish) (*runAnswer, error) {
	conn, err := postoffice.DialSocket(ctx, filepath.Join(dir, controlSocket))
	switch {
	case errors.Is(err, os.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		return nil, errNoRun
	case errors.Is(err, os.ErrPermission):
		return nil, fmt.Errorf("zmctl run answers to root and to the owner of the postoffice: %w", err)
	case err != nil:
		return nil, err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if err := json.NewEncoder(conn).Encode(w); err != nil {
		return nil, fmt.Errorf("%w: it has just ended: %w", errNoRun, err)
	}
	var st runAnswer
	err = json.NewDecoder(conn).Decode(&st)
	whole := w.Do == "stop" && len(w.Daemons) == 0
	switch {
	case err != nil && ctx.Err() != nil:
		return nil, fmt.Errorf("ask zmctl run: %w", ctx.Err())
	case err != nil && whole:
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("%w: it has just ended: %w", errNoRun, err)
	case st.Error != "":
		return &st, errors.New(st.Error)
	}
	return &st, nil
}

// find is the daemon of a name, nil if there is none.
func (s *supervisor) find(name string) *daemon {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := slices.IndexFunc(s.daemons, func(d *daemon) bool { return d.name == name }); i >= 0 {
		return s.daemons[i]
	}
	return nil
}

// ending tells whether nothing is started any more.
func (s *supervisor) ending() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.over
}

func (s *supervisor) states() []daemonState {
	s.mu.Lock()
	list := slices.Clone(s.daemons)
	s.mu.Unlock()
	var all []daemonState
	for _, d := range list {
		st, _ := d.now()
		all = append(all, st)
	}
	return all
}

// awaitAll waits until every daemon that nobody has stopped is ready.
func (s *supervisor) awaitAll(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	s.mu.Lock()
	list := slices.Clone(s.daemons)
	s.mu.Unlock()
	var errs []error
	for _, d := range list {
		if st, _ := d.now(); !st.Stopped {
			errs = append(errs, d.awaitUp(ctx, 0))
		}
	}
	return errors.Join(errs...)
}

// startOnes starts the daemons that do not run, all if none is named, those who bring
// mail in last, and waits until they are ready. With again, those that run are stopped
// before.
func (s *supervisor) startOnes(ctx context.Context, names []string, again bool) error {
	if len(names) == 0 {
		names = daemonNames()
	}
	wanted := slices.DeleteFunc(daemonNames(), func(name string) bool { return !slices.Contains(names, name) })
	if again {
		for _, name := range wanted {
			if d := s.find(name); d != nil {
				s.end(d)
			}
		}
	}
	type begun struct {
		*daemon
		ends int
	}
	var started []begun
	for _, name := range slices.Backward(wanted) {
		if d := s.find(name); d != nil && d.ends() {
			s.end(d) // it was told to stop, and is at it
		}
		d, err := s.startOne(name)
		if err != nil {
			return err
		}
		st, _ := d.now()
		started = append(started, begun{d, st.ends})
	}
	ctx, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	var errs []error
	for _, d := range started {
		errs = append(errs, d.awaitUp(ctx, d.ends))
	}
	return errors.Join(errs...)
}

// startOne puts a new daemon into the place of one that has ended for good, or waits
// before it is started again.
func (s *supervisor) startOne(name string) (*daemon, error) {
	before := map[*daemon]daemonState{} // of those that were ended here
	for {
		d, st, ended, err := s.replace(name, before)
		if err != nil || ended == nil {
			return d, err
		}
		before[ended] = st
		// Not under s.mu: it may take stopTimeout, and others ask how the daemons do.
		s.end(ended)
	}
}

// replace is startOne without waiting: where a daemon has to end first it returns that
// one, with its state.
func (s *supervisor) replace(name string, before map[*daemon]daemonState) (started *daemon, st daemonState, ending *daemon, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.IndexFunc(s.daemons, func(d *daemon) bool { return d.name == name })
	if i < 0 || s.over {
		return nil, st, nil, fmt.Errorf("start %s: %w", name, errStopping)
	}
	d := s.daemons[i]
	st, _ = d.now()
	select {
	case <-d.done:
	default:
		if !d.ends() && (st.Runs || st.Starts == 0) {
			return d, st, nil, nil
		}
		return nil, st, d, nil
	}
	if was, ok := before[d]; ok {
		st = was
	}
	next := newDaemon(d.name, d.path, d.args...)
	if !st.Stopped {
		next.state.Starts, next.state.Last = st.Starts, st.Last
	}
	s.daemons[i] = next
	// One that cannot use its configuration does not stop the others: whoever asked is told.
	go s.keep(next, make(chan *daemon, 1))
	return next, st, nil, nil
}
