package main

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

	"github.com/urfave/cli/v2"

	"zmailer/internal/postoffice"
	"zmailer/internal/run/config"
	"zmailer/internal/run/human"
	"zmailer/internal/run/logfile"
)

// launch starts a zmctl run in the background, and waits until its daemons are ready.
func (s *steward) launch(ctx context.Context) error {
	for _, name := range daemonNames() {
		if _, err := program(name); err != nil {
			return cli.Exit(err, config.ExitOSErr)
		}
	}
	path := s.settings.String("LOGFILE", "")
	if path == "" {
		path = filepath.Join(s.dir, postoffice.LogFile)
	}
	log, err := logfile.OpenFile(path, ownLog(path, s.dir))
	if err != nil {
		return s.settings.Invalid("LOGFILE", "cannot be used", err)
	}
	defer log.Close()
	if err := s.likeOthers(log); err != nil {
		return err
	}
	before, err := log.Stat()
	if err != nil {
		return fmt.Errorf("open the log: %w", err)
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find zmctl: %w", err)
	}
	args := append(logFlags(s.c), "run", "--"+backgroundFlag, "--log-file", path, "--stop-timeout", s.c.Duration("stop-timeout").String())
	cmd := exec.Command(self, args...)
	cmd.Env, cmd.Stdout, cmd.Stderr, cmd.Dir = environment(s.settings), log, log, "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start zmctl run: %w", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	if err := s.awaitRun(ctx, ended); err != nil {
		said := tailOf(path, before.Size())
		if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
			return cli.Exit("zmctl run has ended; what it said:\n"+said, max(exit.ExitCode(), 1))
		}
		return fmt.Errorf("%w; the log says:\n%s", err, said)
	}
	return nil
}

// ownLog reports whether a log is in the postoffice, where its owner may have put any name,
// and we may be root.
func ownLog(path, dir string) bool { return filepath.Dir(path) == dir }

// likeOthers gives a log that root has made in the postoffice to its owner.
func (s *steward) likeOthers(log *os.File) error {
	if os.Geteuid() != 0 || filepath.Dir(log.Name()) != s.dir {
		return nil
	}
	own, err := log.Stat()
	if err != nil {
		return err
	}
	if st, ok := own.Sys().(*syscall.Stat_t); !ok || !own.Mode().IsRegular() || st.Nlink != 1 {
		return fmt.Errorf("the log %s is no file of its own", log.Name())
	}
	info, err := os.Stat(s.dir)
	if err != nil {
		return err
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return log.Chown(int(st.Uid), int(st.Gid))
	}
	return nil
}

// endGrace is how long a zmctl run that has told of trouble may take to end for it.
const endGrace = 300 * time.Millisecond

// awaitRun waits until the zmctl run answers and its daemons are ready.
func (s *steward) awaitRun(ctx context.Context, ended <-chan error) error {
	ctx, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	look := time.NewTicker(10 * time.Millisecond)
	defer look.Stop()
	answers := make(chan error, 1)
	asked, why := false, error(nil)
	over := (<-chan time.Time)(nil) // when why is the answer
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
			case errors.Is(err, errNoRun):
				asked = false // it does not listen yet
			default:
				// If it ends for that, its exit code tells more.
				why, over = err, time.After(endGrace)
			}
		case <-over:
			return why
		case <-look.C:
			if !asked {
				asked = true
				go func() {
					st, err := ask(ctx, s.dir, wish{Do: "wait"})
					if st != nil && st.Ending {
						err = errNoRun
					}
					answers <- err
				}()
			}
		case <-ctx.Done():
			return fmt.Errorf("zmctl run does not answer: %w", ctx.Err())
		}
	}
}

// tailOf is what a log has got since it had a length, at most the last forty lines.
func tailOf(path string, from int64) string {
	b, err := os.ReadFile(path)
	if err != nil || int64(len(b)) < from {
		return path + " tells"
	}
	lines := strings.SplitAfter(strings.TrimRight(string(b[from:]), "\n"), "\n")
	return cleanLines(strings.Join(lines[max(0, len(lines)-40):], ""))
}

// cleanLines is clean that leaves the ends of lines.
func cleanLines(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		b.WriteString(human.Clean(strings.TrimSuffix(line, "\n")))
		if strings.HasSuffix(line, "\n") {
			b.WriteByte('\n')
		}
	}
	return b.String()
}
