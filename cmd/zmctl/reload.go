package main

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"syscall"
	"time"

	"github.com/urfave/cli/v2"
)

func reloadCommand() *cli.Command {
	return &cli.Command{
		Name:      "reload",
		Usage:     "have the scheduler read scheduler.conf again now",
		UsageText: "zmctl reload",
		Description: `Sends SIGHUP to the scheduler of this postoffice, which reads scheduler.conf beside its
deliveries. A bad one is refused, its log says why (conf-refused), and the old one stays;
zmctl check-config tells before. Without it the file is read within seconds after it has
changed; the router reads its tables again by itself.

Exit codes: 0 it was asked, 1 no scheduler runs here.`,
		Action: runReload,
	}
}

func runReload(c *cli.Context) error {
	if err := noArguments(c); err != nil {
		return err
	}
	p, _, err := open(c)
	if err != nil {
		return err
	}
	defer closeFS(p)
	s := newSpool(p, time.Now())
	f, err := s.stat(".", ".pid.scheduler")
	pid, held := 0, false
	if err == nil {
		pid, held = s.holder(f)
	}
	if err != nil && !errors.Is(err, errMoved) {
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
