package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/urfave/cli/v2"

	"zmailer/internal/admin/check"
	"zmailer/internal/admin/service"
	"zmailer/internal/admin/view"
	"zmailer/internal/disk/lastgood"
	"zmailer/internal/run/config"
	"zmailer/internal/run/human"
	"zmailer/internal/stage/tasmtp"
)

func reloadCommand() *cli.Command {
	return &cli.Command{
		Name:      "reload",
		Usage:     "make the daemons read zmailer.conf and scheduler.conf again, and reopen the log",
		UsageText: "zmctl reload [DAEMON...]",
		Description: `Checks the configuration as zmctl check-config does; if there are errors, nothing but LOGFILE is
touched. Then it sends SIGHUP to the daemons of this postoffice, waits until each has answered, also
if nothing has changed, and prints for each which settings that have changed are applied, and which need a
restart (docs/reload.md lists them). Deliveries and connections are not interrupted: smtpserver
uses the new settings for new connections, the router for new messages, and the scheduler reads
scheduler.conf, too, and replaces agents whose settings have changed when they have finished.
Then zmctl run reopens LOGFILE, as logrotate(8) requires after a rotation.

Without a reload the scheduler reads a changed scheduler.conf, and all daemons read changed tables
and certificates, within seconds; zmailer.conf is read at a reload alone. A daemon that cannot use
a file goes on as before, and an alarm names the file (zmctl status).

Exit codes: 0 the daemons have read it, 1 no scheduler is running, the log cannot be opened, or a
daemon did not answer in time, 64 bad arguments, 78 the configuration cannot be used.`,
		Action: runReload,
	}
}

// reloadTime is how long daemons may take to read their configuration: the router routes the
// messages that it has begun first.
const reloadTime = 30 * time.Second

func runReload(c *cli.Context) error {
	names := c.Args().Slice()
	if err := checkDaemons(names); err != nil {
		return err
	}
	settings, err := config.FromCLI(c)
	if err := usable(c, settings, err, check.Restart); err != nil {
		if settings == nil {
			return err
		}
		// A rotated log would grow until the configuration is mended.
		return errors.Join(err, reopenLog(c, settings.PostOffice()))
	}
	p, dir, err := open(c)
	if err != nil {
		return err
	}
	defer closeFS(p)
	if len(names) == 0 {
		names = service.Daemons()
	}
	forgetUnnamed(settings)
	lastgood.Approve(settings, slog.New(slog.DiscardHandler))
	before := service.ReadingOf(settings, append(slices.Clone(names), service.Supervisor))
	at := lastgood.Now()
	asked, err := service.New(c.Context, settings, p, false).HangUp(c.Context, slices.DeleteFunc(slices.Clone(names), isScheduler), c.App.Writer)
	if slices.ContainsFunc(names, isScheduler) {
		serr := hangUpScheduler(view.New(p, time.Now()))
		if serr == nil {
			asked = append(asked, "scheduler")
		}
		err = errors.Join(err, serr)
	}
	if _, rerr := service.Ask(c.Context, dir, service.Request{Do: "status"}); rerr == nil {
		asked = append(asked, service.Supervisor)
	}
	ctx, cancel := context.WithTimeout(c.Context, reloadTime)
	defer cancel()
	err = errors.Join(err, printReloaded(c.App.Writer, service.AwaitReload(ctx, settings, asked, before, at)))
	// The log is reopened even if the scheduler is stopped.
	return errors.Join(err, reopenLog(c, dir))
}

// forgetUnnamed removes copies and notes about files that agents do not read any more. Agents do
// that, too, but perhaps none is started for days.
func forgetUnnamed(settings *config.Config) {
	files, err := tasmtp.NamedFiles(settings)
	if err != nil {
		return // it was checked a moment ago; the next agent does it
	}
	if store, err := lastgood.Open(settings.PostOffice(), "ta-smtp", slog.New(slog.DiscardHandler)); err == nil {
		store.Only(append(files, settings.File))
	}
}

func isScheduler(name string) bool { return name == "scheduler" }

// printReloaded prints a line for each outcome. Its error is that of the exit code.
func printReloaded(w io.Writer, list []service.Reloaded) (err error) {
	for _, r := range list {
		var parts []string
		if len(r.Applied) > 0 {
			parts = append(parts, "applied "+strings.Join(r.Applied, ", "))
		}
		if len(r.Restart) > 0 {
			command := "zmctl restart " + r.Daemon
			if r.Daemon == service.Supervisor {
				command = "zmctl restart"
			}
			parts = append(parts, command+" will apply "+strings.Join(r.Restart, ", "))
		}
		switch {
		case r.Refused != "":
			parts = append(parts, "refused the configuration and goes on as before: "+human.Clean(r.Refused))
			err = cli.Exit(r.Daemon+" refused the configuration", config.ExitConfig)
		case r.Unknown && r.Daemon == service.Supervisor:
			continue
		case r.Unknown:
			parts = append(parts, "reads zmailer.conf; its log has conf-read or conf-refused")
		case r.Late:
			parts = append(parts, "has not read zmailer.conf yet; its log will have conf-read or conf-refused")
			err = cli.Exit(r.Daemon+" has not answered in time", 1)
		case r.Other:
			parts = append(parts, "has read another zmailer.conf than the one that was checked: it was changed meanwhile; run zmctl reload again")
			err = cli.Exit(r.Daemon+" has read another zmailer.conf", 1)
		case len(parts) == 0 && r.Daemon == service.Supervisor:
			continue
		case len(parts) == 0:
			parts = append(parts, "no setting has changed")
		}
		fmt.Fprintf(w, "%-11s %s\n", r.Daemon, strings.Join(parts, "; "))
	}
	return err
}

// reopenLog has the zmctl run of a postoffice reopen LOGFILE, if there is one.
func reopenLog(c *cli.Context, dir string) error {
	st, err := service.Ask(c.Context, dir, service.Request{Do: "reopen"})
	if errors.Is(err, service.ErrNoRun) {
		return nil
	}
	if err == nil && st != nil && st.Log != "" {
		fmt.Fprintln(c.App.Writer, "the log continues in", st.Log)
	}
	return err
}

// hangUpScheduler makes the scheduler read its configuration.
func hangUpScheduler(s *view.Spool) error {
	f, err := s.Stat(".", ".pid.scheduler")
	pid, held := 0, false
	if err == nil {
		pid, held = s.Holder(f)
	}
	if err != nil && !errors.Is(err, view.ErrMoved) {
		return fmt.Errorf("find the scheduler: %w", err)
	}
	if !held || pid <= 0 {
		return errors.New("no scheduler is running; the next one reads the file when it starts")
	}
	if err := syscall.Kill(pid, syscall.SIGHUP); err != nil {
		return fmt.Errorf("signal the scheduler, pid %d: %w", pid, err)
	}
	return nil
}
