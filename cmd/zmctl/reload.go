package main

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/urfave/cli/v2"

	"zmailer/internal/admin/view"
)

func reloadCommand() *cli.Command {
	return &cli.Command{
		Name:      "reload",
		Usage:     "have the scheduler read scheduler.conf again now, and reopen the log",
		UsageText: "zmctl reload [DAEMON...]",
		Description: `Sends SIGHUP to the scheduler of this postoffice, which reads scheduler.conf beside its
deliveries. A bad one is refused, its log says why (conf-refused), and the old one stays;
zmctl check-config tells before. Without it the file is read within seconds after it has
changed. Then zmctl run reopens LOGFILE, as logrotate(8) wants it after a rotation.

router and smtpserver read their tables and certificates again by themselves; none of the
daemons reads zmailer.conf again: zmctl restart.

Exit codes: 0 it was asked, 1 no scheduler runs here, or the log cannot be opened, 64 bad
arguments.`,
		Action: runReload,
	}
}

func runReload(c *cli.Context) error {
	names := c.Args().Slice()
	if err := checkDaemons(names); err != nil {
		return err
	}
	p, dir, err := open(c)
	if err != nil {
		return err
	}
	defer closeFS(p)
	for _, name := range names {
		if name != "scheduler" {
			fmt.Fprintf(c.App.Writer, "%s reads its tables again by itself when they change; zmailer.conf wants zmctl restart %s\n", name, name)
		}
	}
	if len(names) > 0 && !slices.Contains(names, "scheduler") {
		return nil
	}
	err = hangUpScheduler(c, view.New(p, time.Now()))
	// The log is reopened also where the scheduler was stopped.
	st, aerr := ask(c.Context, dir, wish{Do: "reopen"})
	if errors.Is(aerr, errNoRun) {
		aerr = nil
	}
	if aerr == nil && st != nil && st.Log != "" {
		fmt.Fprintln(c.App.Writer, "the log goes on in", st.Log)
	}
	return errors.Join(err, aerr)
}

// hangUpScheduler has the scheduler read its configuration.
func hangUpScheduler(c *cli.Context, s *view.Spool) error {
	f, err := s.Stat(".", ".pid.scheduler")
	pid, held := 0, false
	if err == nil {
		pid, held = s.Holder(f)
	}
	if err != nil && !errors.Is(err, view.ErrMoved) {
		return fmt.Errorf("find the scheduler: %w", err)
	}
	if !held || pid <= 0 {
		return errors.New("no scheduler runs here; a new one reads the file when it starts")
	}
	if err := syscall.Kill(pid, syscall.SIGHUP); err != nil {
		return fmt.Errorf("ask the scheduler, pid %d, to read its configuration: %w", pid, err)
	}
	fmt.Fprintf(c.App.Writer, "the scheduler, pid %d, reads scheduler.conf; its log tells conf-read or conf-refused\n", pid)
	return nil
}

func freezeServiceCommand() *cli.Command {
	return &cli.Command{
		Name:      "freeze-service",
		Usage:     "keep the scheduler of this postoffice from being started",
		UsageText: "zmctl freeze-service [REASON]",
		Description: `Sets a flag, the file .freeze in the postoffice, with who and why. A scheduler that
is started while it is there says so and exits 78. What runs goes on: stop it as well.

Exit codes: 0 it is set, also if it was.`,
		Action: func(c *cli.Context) error {
			p, _, err := open(c)
			if err != nil {
				return err
			}
			defer closeFS(p)
			why := strings.TrimSpace("by " + who(c.Context) + " " + time.Now().Format(time.RFC3339) + " " + strings.Join(c.Args().Slice(), " "))
			err = p.FreezeService(why)
			if errors.Is(err, fs.ErrExist) {
				was, _ := p.Frozen()
				fmt.Fprintln(c.App.Writer, "it was frozen already:", was)
				return nil
			}
			return err
		},
	}
}

func thawServiceCommand() *cli.Command {
	return &cli.Command{
		Name:        "thaw-service",
		Usage:       "let the scheduler of this postoffice be started again",
		UsageText:   "zmctl thaw-service",
		Description: "Takes away what zmctl freeze-service has set. Exit codes: 0 it is gone, also if it was.",
		Action: func(c *cli.Context) error {
			if err := noArguments(c); err != nil {
				return err
			}
			p, _, err := open(c)
			if err != nil {
				return err
			}
			defer closeFS(p)
			was, err := p.ThawService()
			if err == nil && !was {
				fmt.Fprintln(c.App.Writer, "it was not frozen")
			}
			return err
		},
	}
}
