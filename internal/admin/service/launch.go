package service

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"zmailer/internal/postoffice"
	"zmailer/internal/run/logfile"
	"zmailer/internal/run/supervise"
)

// BackgroundFlag is passed by Start to the zmctl run that it launches.
const BackgroundFlag = "background"

// LaunchError means that zmctl run has ended instead of serving.
type LaunchError struct {
	Code   int    // its exit code
	Output string // the last lines that it has logged
}

func (e *LaunchError) Error() string { return "zmctl run has ended; its output:\n" + e.Output }

// prepare checks what a launch needs, and returns the log.
func (s *Service) prepare() (*os.File, error) {
	for _, name := range Daemons() {
		if _, err := Program(name); err != nil {
			return nil, err
		}
	}
	dir := s.Settings.PostOffice()
	path := s.Settings.String("LOGFILE", "")
	if path == "" {
		path = filepath.Join(dir, postoffice.LogFile)
	}
	log, err := logfile.OpenFile(path, inPostoffice(path, dir))
	if err != nil {
		return nil, s.Settings.Invalid("LOGFILE", "cannot be used", err)
	}
	if err := giveToOwner(log, dir); err != nil {
		return nil, errors.Join(err, log.Close())
	}
	return log, nil
}

// launch starts a zmctl run in the background and waits until its daemons are ready. It closes the
// log, which prepare has opened.
func (s *Service) launch(ctx context.Context, log *os.File) error {
	defer log.Close()
	path := log.Name()
	before, err := log.Stat()
	if err != nil {
		return fmt.Errorf("open the log: %w", err)
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find zmctl: %w", err)
	}
	args := append(s.LogFlags, "run", "--"+BackgroundFlag, "--log-file", path, "--stop-timeout", s.StopTimeout.String())
	cmd := exec.Command(self, args...)
	cmd.Env, cmd.Stdout, cmd.Stderr, cmd.Dir = Environment(s.Settings), log, log, "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start zmctl run: %w", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	if err := s.awaitRun(ctx, ended); err != nil {
		output := tail(path, before.Size())
		if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
			return &LaunchError{Code: max(exit.ExitCode(), 1), Output: output}
		}
		return fmt.Errorf("%w; the log says:\n%s", err, output)
	}
	return nil
}

// giveToOwner gives a log that root has created in the postoffice to the owner of the
// postoffice.
func giveToOwner(log *os.File, dir string) error {
	if os.Geteuid() != 0 || !inPostoffice(log.Name(), dir) {
		return nil
	}
	own, err := log.Stat()
	if err != nil {
		return err
	}
	if st, ok := own.Sys().(*syscall.Stat_t); !ok || !own.Mode().IsRegular() || st.Nlink != 1 {
		return fmt.Errorf("the log %s is not a regular file with one name", log.Name())
	}
	info, err := os.Stat(dir)
	if err != nil {
		return err
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return log.Chown(int(st.Uid), int(st.Gid))
	}
	return nil
}

// endGrace is how long a zmctl run that has answered with an error may take to end for it.
const endGrace = 300 * time.Millisecond

// awaitRun waits until the zmctl run answers and its daemons are ready.
func (s *Service) awaitRun(ctx context.Context, ended <-chan error) error {
	ctx, cancel := context.WithTimeout(ctx, supervise.ReadyTimeout)
	defer cancel()
	poll := time.NewTicker(10 * time.Millisecond)
	defer poll.Stop()
	answers := make(chan error, 1)
	asked, reason := false, error(nil)
	over := (<-chan time.Time)(nil) // when reason is the result
	for {
		select {
		case err := <-ended:
			if err == nil {
				err = errors.New("zmctl run has ended")
			}
			return err
		case err := <-answers:
			switch {
			case err == nil:
				return nil
			case errors.Is(err, ErrNoRun):
				asked = false // it does not listen yet
			default:
				// If it ends because of this, its exit code has the reason.
				reason, over = err, time.After(endGrace)
			}
		case <-over:
			return reason
		case <-poll.C:
			if !asked {
				asked = true
				go func() {
					a, err := s.ask(ctx, Request{Do: "wait"})
					if a != nil && a.Ending {
						err = ErrNoRun
					}
					answers <- err
				}()
			}
		case <-ctx.Done():
			return fmt.Errorf("zmctl run does not answer: %w", ctx.Err())
		}
	}
}

// tail returns what was appended to a log since it had a length, the last forty lines at most.
func tail(path string, from int64) string {
	b, err := os.ReadFile(path)
	if err != nil || int64(len(b)) < from {
		return "see " + path
	}
	lines := strings.SplitAfter(strings.TrimRight(string(b[from:]), "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-40):], "")
}
