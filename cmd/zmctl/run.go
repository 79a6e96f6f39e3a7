package main

import (
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"zmailer/internal/admin/check"
	"zmailer/internal/admin/service"
	"zmailer/internal/disk/lastgood"
	"zmailer/internal/run/config"
)

func runCommand() *cli.Command {
	return &cli.Command{
		Name:      "run",
		Usage:     "run smtpserver, router and scheduler in the foreground",
		UsageText: "zmctl run [--strict] [--log-file FILE] [--stop-timeout TIME] [--restart-pause TIME]",
		Description: `Starts the three daemons with this postoffice and configuration, creates the postoffice if it
is missing, and prints the paths. The programs are those beside zmctl, otherwise
those in PATH. Their logs go to standard error, as that of zmctl run does, or to LOGFILE.

A daemon that exits is started again, first after --restart-pause, then after twice the time,
up to sixty times the first pause; after a run of that length the first pause applies again. A
configuration is checked first, as zmctl check-config --start does; zmctl exits 78 if it cannot
be used. A daemon that exits 78 nevertheless when it is first started is not started again
until zmctl start; the others go on. With --strict all are stopped, and zmctl exits 78.

SIGTERM or SIGINT stops smtpserver, then router, then scheduler; each may finish its current
work until --stop-timeout, then it is killed. If zmctl itself is killed, the kernel kills the
daemons; no mail is lost, and the next start continues.

SIGUSR1 reopens LOGFILE. SIGHUP does so too and has the scheduler read its configuration
again; the hang-up of the terminal stops everything. One zmctl run can serve a postoffice;
zmctl start, stop, restart, reload and status reach it by the socket .run there.

Exit codes: 0 stopped, 1 another one is running, 64 bad arguments, 71 a program is missing,
78 bad configuration, or the service is frozen.`,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "log-file", Usage: "write the log to `FILE` instead of LOGFILE"},
			&cli.BoolFlag{Name: service.BackgroundFlag, Hidden: true},
			&cli.BoolFlag{Name: "strict", Usage: "if unfinished files are in public/, list them and exit 78"},
			&cli.DurationFlag{Name: "restart-pause", Value: time.Second, Usage: "restart a daemon that has exited after `TIME`"},
			&cli.DurationFlag{Name: "stop-timeout", Value: 30 * time.Second, Usage: "kill a daemon that has not exited `TIME` after SIGTERM"},
		},
		Action: runDaemons,
	}
}

func runDaemons(c *cli.Context) error {
	if err := noArguments(c); err != nil {
		return err
	}
	settings, err := config.FromCLI(c)
	if err := usable(c, settings, err, check.Start); err != nil {
		return err
	}
	if err := ensurePostoffice(c, settings); err != nil {
		return err
	}
	lastgood.Approve(settings, slog.New(slog.DiscardHandler))
	po, dir, err := open(c)
	if err != nil {
		return err
	}
	defer closeFS(po)
	r, err := service.NewRun(c.Context, service.Options{Settings: settings, PostOffice: po, LogFile: c.String("log-file"), LogFlags: logFlags(c),
		Background: c.Bool(service.BackgroundFlag), Strict: c.Bool("strict"), Terminal: terminal(os.Stdin) || terminal(os.Stderr),
		Pause: c.Duration("restart-pause"), StopTimeout: c.Duration("stop-timeout"), Out: c.App.Writer, Err: c.App.ErrWriter})
	if err != nil {
		return serviceError(err)
	}
	defer r.Close()
	if !c.Bool(service.BackgroundFlag) {
		fmt.Fprint(c.App.Writer, banner(settings, dir, r.LogPath()))
	}
	return serviceError(r.Serve(c.Context))
}

// banner lists the paths and addresses.
func banner(settings *config.Config, dir, log string) string {
	conf := settings.File
	if conf == "" {
		conf = "built in; zmctl init --config-dir DIR writes it out"
	}
	smtp := strings.Join(settings.List("SMTPLISTEN"), " ")
	if smtp == "" {
		all := config.Variables()
		smtp = all[slices.IndexFunc(all, func(v config.Variable) bool { return v.Name == "SMTPLISTEN" })].Default
	}
	if log != "" {
		log = "log            " + log + "\n"
	}
	call := "zmctl --postoffice " + dir
	if settings.File != "" {
		call = "zmctl --config " + settings.File
	}
	return "postoffice     " + dir + "\n" +
		"configuration  " + conf + "\n" +
		"SMTP           " + smtp + "\n" + log +
		"look           " + call + " status, queue, show ID, check\n" +
		"stop           Ctrl-C or kill " + fmt.Sprint(os.Getpid()) + "\n"
}
