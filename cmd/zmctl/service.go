package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"zmailer/internal/admin/check"
	"zmailer/internal/admin/service"
	"zmailer/internal/admin/setup"
	"zmailer/internal/admin/view"
	"zmailer/internal/disk/lastgood"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/config"
	"zmailer/internal/run/human"
	"zmailer/internal/run/supervise"
	"zmailer/internal/ui/text"
)

const serviceHelp = `
If systemd has units for this postoffice, the command calls systemctl; otherwise, or with
--direct, it uses zmctl run in the background, which logs to LOGFILE or to the file log in the
postoffice. DAEMON is smtpserver, router or scheduler; the default is all.

Exit codes: 0 done, also if there was nothing to do, 1 failed, 64 bad arguments, 71 a
program is missing, 78 bad configuration, or the service is frozen.`

func serviceCommands() []*cli.Command {
	direct := &cli.BoolFlag{Name: "direct", Usage: "do not use systemd, even if it has units"}
	stopTimeout := &cli.DurationFlag{Name: "stop-timeout", Value: 30 * time.Second, Usage: "without systemd: when stopping, kill a daemon `TIME` after SIGTERM"}
	return []*cli.Command{
		{
			Name: "start", Usage: "start the daemons in the background", UsageText: "zmctl start [--direct] [DAEMON...]\n   zmctl start --accepting",
			Description: `Starts the daemons that are not running, and returns when they are ready. If a daemon exits
instead, its output is printed. With --accepting it starts no daemon: new mail is accepted again after
zmctl stop --accepting.
` + serviceHelp,
			Flags:  []cli.Flag{direct, stopTimeout, &cli.BoolFlag{Name: "accepting", Usage: "accept new mail again"}},
			Action: func(c *cli.Context) error { return runService(c, (*service.Service).Start) },
		}, {
			Name: "stop", Usage: "stop the daemons in order", UsageText: "zmctl stop [--direct] [DAEMON...]\n   zmctl stop --accepting [--until WHEN] [--reason TEXT]",
			Description: `Stops smtpserver, then router, then scheduler, and returns when they have exited; each may
finish its current work. This also ends a zmctl run in the foreground.

With --accepting it stops no daemon, but has new mail refused, also after a restart, while the
queue goes out: before the machine is moved or switched off. Other hosts get 421 in place of a
greeting and keep their mail; users on the submission ports get 450, and submit exits 75. It ends
at --until, or at zmctl start --accepting. zmctl status shows it, and zmctl undo reverts it. See
docs/suspend.md.

    zmctl stop --accepting --until 6h --reason "moving to the new machine"
` + serviceHelp,
			Flags: []cli.Flag{direct, &cli.BoolFlag{Name: "accepting", Usage: "refuse new mail, and stop no daemon"}, untilFlag(),
				&cli.StringFlag{Name: "reason", Usage: "with --accepting: record `TEXT`; zmctl status and orders show it"}},
			Action: func(c *cli.Context) error { return runService(c, (*service.Service).Stop) },
		}, {
			Name: "restart", Usage: "stop the daemons and start them again", UsageText: "zmctl restart [--direct] [--if-running] [DAEMON...]",
			Description: `Stops and starts the daemons. They read all of zmailer.conf again; after zmctl reload
smtpserver alone does, and a few settings need a restart there, too.
` + serviceHelp,
			Flags:  []cli.Flag{direct, stopTimeout, &cli.BoolFlag{Name: "if-running", Usage: "without systemd: do nothing if no daemon runs"}},
			Action: func(c *cli.Context) error { return runService(c, (*service.Service).Restart) },
		},
	}
}

func runService(c *cli.Context, do func(*service.Service, context.Context, []string, io.Writer) error) error {
	names := c.Args().Slice()
	if c.Bool("accepting") {
		return runAccepting(c)
	}
	if c.String("until")+c.String("reason") != "" {
		return cli.Exit("zmctl stop: --until and --reason are for --accepting", config.ExitUsage)
	}
	if err := checkDaemons(names); err != nil {
		return err
	}
	settings, err := config.FromCLI(c)
	switch {
	case c.Command.Name == "stop":
		// What runs can be stopped whatever the file has become.
		if settings, err = lastgood.Accepted(c); err != nil {
			return err
		}
	default:
		// A restart leaves what runs alone, unless all of the new configuration is right; a start
		// may go on with copies of what is wrong now.
		depth := check.Restart
		if c.Command.Name == "start" {
			depth = check.Start
		}
		if err := usable(c, settings, err, depth); err != nil {
			return err
		}
		if err := ensurePostoffice(c, settings); err != nil {
			return err
		}
		lastgood.Approve(settings, slog.New(slog.DiscardHandler))
	}
	po, _, err := open(c)
	if err != nil {
		return err
	}
	defer closeFS(po)
	s := service.New(c.Context, settings, po, c.Bool("direct"))
	s.LogFlags = logFlags(c)
	if c.Bool("if-running") {
		if st, err := s.Status(c.Context); err != nil || st == nil {
			return err
		}
	}
	if t := c.Duration("stop-timeout"); t > 0 {
		s.StopTimeout = t
	}
	err = do(s, c.Context, names, c.App.Writer)
	if c.Command.Name == "stop" && errors.Is(err, service.ErrNoRun) {
		if err = unmanaged(po); err == nil {
			fmt.Fprintln(c.App.Writer, "no daemons are running")
		}
		return err
	}
	st, serr := s.Status(c.Context)
	switch {
	case serr == nil && st != nil:
		serr = text.PrintService(c.App.Writer, st, time.Now())
	case err == nil && serr == nil:
		fmt.Fprintln(c.App.Writer, "no daemons are running")
	}
	return errors.Join(serviceError(err), serr)
}

// usable prints what is wrong with a configuration, and returns an error if a start would fail.
// parse is the error of reading zmailer.conf.
func usable(c *cli.Context, settings *config.Config, parse error, depth check.Depth) error {
	found, err := check.ConfigAsDaemon(c.Context, settings, parse, depth)
	if err != nil {
		return err
	}
	for _, line := range found.Lines {
		if line.Wrong || line.Held {
			fmt.Fprintln(c.App.ErrWriter, line.Text)
		}
	}
	if !found.Usable {
		return cli.Exit("the configuration cannot be used: nothing was started, stopped or reloaded; correct the lines above", found.Code)
	}
	return nil
}

// serviceError adds the remedy and the exit code to an error of package service.
func serviceError(err error) error {
	frozen, launch, bad := (*service.FrozenError)(nil), (*service.LaunchError)(nil), (*supervise.ConfigError)(nil)
	switch {
	case errors.As(err, &frozen):
		return cli.Exit(fmt.Sprintf("%v; zmctl thaw-service allows a start", err), config.ExitConfig)
	case errors.As(err, &launch):
		var text strings.Builder
		for line := range strings.Lines(launch.Output) {
			text.WriteString(human.Clean(strings.TrimSuffix(line, "\n")) + "\n")
		}
		return cli.Exit("zmctl run has ended; its output:\n"+text.String(), launch.Code)
	case errors.As(err, &bad):
		return cli.Exit(err.Error()+"; see its message above", config.ExitConfig)
	case errors.Is(err, service.ErrNoProgram):
		return cli.Exit(err, config.ExitOSErr)
	}
	return err
}

// unmanaged returns an error if daemons run that neither systemd nor zmctl run manages.
func unmanaged(po *postoffice.PostOffice) error {
	s := view.New(po, time.Now())
	for _, name := range []string{"zmctl", "scheduler", "router"} {
		if s.Runs(name) {
			return fmt.Errorf("a %s runs here that zmctl did not start; zmctl status shows it, and kill ends it", name)
		}
	}
	return nil
}

// checkDaemons refuses names of other programs.
func checkDaemons(names []string) error {
	for _, name := range names {
		if !slices.Contains(service.Daemons(), name) {
			return cli.Exit(name+" is not a daemon: they are smtpserver, router and scheduler", config.ExitUsage)
		}
	}
	return nil
}

func ensurePostoffice(c *cli.Context, settings *config.Config) error {
	p, _, err := open(c)
	if errors.Is(err, fs.ErrNotExist) {
		if err := setup.Fresh(settings); err != nil {
			return err
		}
		fmt.Fprintln(c.App.Writer, "made the postoffice", settings.PostOffice())
		p, _, err = open(c)
	}
	if err != nil {
		return err
	}
	return closeFS(p)
}

// logFlags passes the flags about logs on to daemons.
func logFlags(c *cli.Context) []string {
	var args []string
	for _, name := range []string{"log-format", "log-level"} {
		if v := c.String(name); v != "" {
			args = append(args, "--"+name+"="+v)
		}
	}
	return args
}

func freezeServiceCommand() *cli.Command {
	return &cli.Command{
		Name:      "freeze-service",
		Usage:     "prevent the start of the daemons of this postoffice",
		UsageText: "zmctl freeze-service [REASON]",
		Description: `Creates the file .freeze in the postoffice, with your name and the reason. While it exists a
scheduler exits 78 when it is started. Running daemons are not stopped: use zmctl stop.

Exit codes: 0 the file exists, also if it existed before.`,
		Action: opened(func(c *cli.Context) ([]string, error) { return c.Args().Slice(), nil }, func(c *cli.Context, p *target, reason []string) error {
			why := strings.TrimSpace("by " + who(c.Context) + " " + time.Now().Format(time.RFC3339) + " " + strings.Join(reason, " "))
			err := p.FreezeService(why)
			if errors.Is(err, fs.ErrExist) {
				was, _ := p.Frozen()
				fmt.Fprintln(c.App.Writer, "it was frozen already:", was)
				return nil
			}
			return err
		}),
	}
}

func thawServiceCommand() *cli.Command {
	return &cli.Command{
		Name:      "thaw-service",
		Usage:     "allow the start of the daemons of this postoffice again",
		UsageText: "zmctl thaw-service",
		Description: `Removes the file that zmctl freeze-service created.

Exit codes: 0 the file is gone, also if it was.`,
		Action: opened(none, func(c *cli.Context, p *target, _ struct{}) error {
			was, err := p.ThawService()
			if err == nil && !was {
				fmt.Fprintln(c.App.Writer, "it was not frozen")
			}
			return err
		}),
	}
}
