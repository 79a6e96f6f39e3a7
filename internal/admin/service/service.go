// Package service starts, stops and describes the daemons of a postoffice: by systemd where
// its units serve that postoffice, else by a zmctl run, in the foreground or in the
// background.
//
// It owns the control socket .run and the lock .pid.zmctl of the postoffice, and no state:
// after a crash the next zmctl run takes both. The kernel kills the daemons of a zmctl run
// that dies (package supervise).
//
// Diagnostics: ErrNoRun: no zmctl run can be asked. ErrNoProgram: a program of the pipeline
// is missing. *LaunchError: a zmctl run in the background ended; its output says why.
// *FrozenError: an operator keeps the daemons from being started. *config.Error: the
// configuration cannot be used.
package service

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"zmailer/internal/postoffice"
	"zmailer/internal/run/config"
	"zmailer/internal/run/supervise"
)

// Daemons returns the programs of the pipeline that run all the time, in the order in which
// they are stopped: the one that brings mail in first. They start in the opposite order.
func Daemons() []string { return []string{"smtpserver", "router", "scheduler"} }

// ErrNoProgram means that a program is missing.
var ErrNoProgram = errors.New("it is neither beside this program nor in PATH")

// Program finds a program of ours: beside this one, else in PATH.
func Program(name string) (string, error) {
	if self, err := os.Executable(); err == nil {
		if path, err := exec.LookPath(filepath.Join(filepath.Dir(self), name)); err == nil {
			return path, nil
		}
	}
	path, err := exec.LookPath(name)
	if err != nil {
		return "", fmt.Errorf("find the program %s: %w", name, ErrNoProgram)
	}
	return filepath.Abs(path)
}

// Environment is this process's with the postoffice and the configuration of settings.
func Environment(settings *config.Config) []string {
	ours := []string{"POSTOFFICE", "ZCONFIG", "NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"}
	env := slices.DeleteFunc(os.Environ(), func(e string) bool {
		name, _, _ := strings.Cut(e, "=")
		return slices.Contains(ours, name)
	})
	// An empty ZCONFIG is the built-in configuration, even if the machine has another one.
	return append(env, "POSTOFFICE="+settings.PostOffice(), "ZCONFIG="+settings.File)
}

// Service is the daemons of one postoffice and what runs them.
type Service struct {
	Settings   *config.Config
	PostOffice *postoffice.PostOffice
	// LogFlags and StopTimeout are for a zmctl run that Start or Restart launches.
	LogFlags    []string
	StopTimeout time.Duration

	units *systemd // nil: systemd does not run the daemons
}

// New finds out what runs the daemons. A zmctl run that serves the postoffice takes
// precedence over systemd; with direct, systemd is not asked at all.
func New(ctx context.Context, settings *config.Config, po *postoffice.PostOffice, direct bool) *Service {
	s := &Service{Settings: settings, PostOffice: po, StopTimeout: 30 * time.Second}
	if direct {
		return s
	}
	if _, err := s.ask(ctx, Request{Do: "status"}); errors.Is(err, ErrNoRun) {
		s.units = findSystemd(ctx, "/", settings)
	}
	return s
}

func (s *Service) ask(ctx context.Context, q Request) (*Answer, error) {
	return Ask(ctx, s.Settings.PostOffice(), q)
}

// FrozenError means that zmctl freeze-service keeps the daemons from being started.
type FrozenError struct{ Reason string }

func (e *FrozenError) Error() string { return "the service is frozen: " + e.Reason }

func (s *Service) startable() error {
	if why, frozen := s.PostOffice.Frozen(); frozen {
		return &FrozenError{why}
	}
	return nil
}

// Start starts daemons that do not run, all if none is named, and waits until they are
// ready. What systemctl prints goes to out.
func (s *Service) Start(ctx context.Context, names []string, out io.Writer) error {
	if err := s.startable(); err != nil {
		return err
	}
	if s.units != nil {
		return s.units.act(ctx, "start", names, out)
	}
	_, err := s.ask(ctx, Request{Do: "start", Daemons: names})
	switch {
	case !errors.Is(err, ErrNoRun):
		return err
	case len(names) > 0 && len(names) < len(Daemons()):
		return fmt.Errorf("%w; zmctl start starts it with all daemons", ErrNoRun)
	}
	log, err := s.prepare()
	if err != nil {
		return err
	}
	return s.launch(ctx, log)
}

// Stop stops daemons, all if none is named, and waits until they have ended.
func (s *Service) Stop(ctx context.Context, names []string, out io.Writer) error {
	if s.units != nil {
		return s.units.act(ctx, "stop", names, out)
	}
	_, err := s.ask(ctx, Request{Do: "stop", Daemons: names})
	return err
}

// Restart stops daemons and starts them again. If all daemons run in the background, zmctl
// run itself is replaced, so that its program and its configuration are the new ones.
func (s *Service) Restart(ctx context.Context, names []string, out io.Writer) error {
	if err := s.startable(); err != nil {
		return err
	}
	if s.units != nil {
		return s.units.act(ctx, "restart", names, out)
	}
	a, err := s.ask(ctx, Request{Do: "status"})
	switch {
	case errors.Is(err, ErrNoRun):
		return s.Start(ctx, names, out)
	case err != nil:
		return err
	case a.Background && len(names) == 0:
		// What would keep it from being started leaves alone what runs.
		log, err := s.prepare()
		if err != nil {
			return err
		}
		if _, err := s.ask(ctx, Request{Do: "stop"}); err != nil {
			return errors.Join(err, log.Close())
		}
		return s.launch(ctx, log)
	}
	_, err = s.ask(ctx, Request{Do: "restart", Daemons: names})
	return err
}

// Status describes the daemons and what runs them.
type Status struct {
	By         string            `json:"by"` // systemd, or zmctl run
	Pid        int               `json:"pid,omitempty"`
	Background bool              `json:"background,omitempty"`
	Log        string            `json:"log,omitempty"`
	Daemons    []supervise.State `json:"daemons"`
}

// statusTimeout limits how long zmctl run and systemd may take to answer.
const statusTimeout = 10 * time.Second

// Status asks what runs the daemons; nil if nothing does that can be asked.
func (s *Service) Status(ctx context.Context) (*Status, error) {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	a, err := s.ask(ctx, Request{Do: "status"})
	switch {
	case err == nil:
		return &Status{By: "zmctl run", Pid: a.Pid, Background: a.Background, Log: a.Log, Daemons: a.Daemons}, nil
	case s.units == nil && errors.Is(err, ErrNoRun):
		return nil, nil
	case s.units == nil:
		return nil, err
	}
	list, err := s.units.states(ctx)
	if err != nil {
		return nil, err
	}
	return &Status{By: "systemd", Log: "journalctl -u 'zmailer-*', or zmctl log", Daemons: list}, nil
}

// Ended reports whether a daemon does not run that no operator has stopped.
func (v *Status) Ended() bool {
	return v != nil && slices.ContainsFunc(v.Daemons, func(st supervise.State) bool { return !st.Runs && !st.Stopped })
}

// LogFile returns the file to which the daemons write their log; "" for the journal, which
// systemd keeps. ErrNoLog: none can be found, and the path is where zmctl start writes.
func LogFile(ctx context.Context, settings *config.Config) (path string, err error) {
	return logFile(ctx, "/", settings)
}

// ErrNoLog means that there is no log to read.
var ErrNoLog = errors.New("there is no log file")

func logFile(ctx context.Context, root string, settings *config.Config) (path string, err error) {
	dir := settings.PostOffice()
	if a, err := Ask(ctx, dir, Request{Do: "status"}); err == nil && a.Log != "" {
		return a.Log, nil
	}
	if findSystemd(ctx, root, settings) != nil {
		return "", nil
	}
	if path := settings.String("LOGFILE", ""); path != "" {
		return path, nil
	}
	path = filepath.Join(dir, postoffice.LogFile)
	if _, err := os.Stat(path); err != nil {
		return path, ErrNoLog
	}
	return path, nil
}
