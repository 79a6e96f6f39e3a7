package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"zmailer/internal/postoffice"
	"zmailer/internal/run/config"
)

func runCommand() *cli.Command {
	return &cli.Command{
		Name:      "run",
		Usage:     "run smtpserver, router and scheduler in the foreground",
		UsageText: "zmctl run [--strict] [--log-file FILE] [--stop-timeout TIME] [--restart-pause TIME]",
		Description: `Starts the three daemons with this postoffice and configuration, made first if the
postoffice is missing, and prints where everything is. The programs are looked for
beside zmctl, then in PATH. Their logs go to standard error, like its own, or to LOGFILE.

A daemon that ends is started again, after --restart-pause at first, then after twice the
time up to sixty times the first; a life of that length sets the pause back. One that
exits 78 has a configuration that cannot be used: it is not started again, the others are
stopped, and zmctl exits 78.

SIGTERM or SIGINT stops smtpserver, then router, then scheduler; each may finish what
it has begun until --stop-timeout, then it is killed. If zmctl itself is killed, the
kernel kills the daemons; the next start finds all mail where they left it.

SIGUSR1 reopens LOGFILE, SIGHUP does that and has the scheduler read its configuration
again; on a terminal that hangs up it stops all. One zmctl run serves a postoffice;
zmctl start, stop, restart, reload and status talk to it by the socket .run there.

Exit codes: 0 stopped, 1 another one runs, 64 bad arguments, 71 a program is missing,
78 bad configuration, or the service is frozen.`,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "log-file", Usage: "write the log to `FILE`, whatever LOGFILE says"},
			&cli.BoolFlag{Name: backgroundFlag, Hidden: true},
			&cli.BoolFlag{Name: "strict", Usage: "do not start while unfinished files are in public/: list them and exit 78"},
			&cli.DurationFlag{Name: "restart-pause", Value: time.Second, Usage: "start a daemon that has ended again after `TIME`"},
			&cli.DurationFlag{Name: "stop-timeout", Value: 30 * time.Second, Usage: "kill a daemon that has not ended `TIME` after SIGTERM"},
		},
		Action: runDaemons,
	}
}

// daemonNames stand in the order in which they are stopped: who brings mail in
// first. They start in the opposite order.
func daemonNames() []string { return []string{"smtpserver", "router", "scheduler"} }

func runDaemons(c *cli.Context) error {
	if err := noArguments(c); err != nil {
		return err
	}
	settings, err := config.FromCLI(c)
	if err != nil {
		return err
	}
	dir := settings.PostOffice()
	if err := ensurePostoffice(c, settings); err != nil {
		return err
	}
	r, err := newRun(c, settings)
	if err != nil {
		return err
	}
	defer r.end()
	for _, name := range daemonNames() {
		path, err := program(name)
		if err != nil {
			return cli.Exit(err, config.ExitOSErr)
		}
		d := newDaemon(name, path, logFlags(c)...)
		if c.Bool("strict") && name != "smtpserver" {
			// A daemon that is started again leaves no mail waiting for a person.
			d.first = []string{"--strict"}
		}
		r.s.daemons = append(r.s.daemons, d)
	}
	if !c.Bool(backgroundFlag) {
		fmt.Fprint(c.App.Writer, banner(settings, dir, r.logPath()))
	}
	return r.serve(c.Context)
}

// ensurePostoffice makes the postoffice if it is not there yet. One that is there
// but not whole is mended too, and said so.
func ensurePostoffice(c *cli.Context, settings *config.Config) error {
	dir := settings.PostOffice()
	p, _, err := open(c)
	if err == nil {
		return closeFS(p)
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := makePostoffice(dir); err != nil {
		return err
	}
	if err := givePostoffice(settings); err != nil {
		return err
	}
	fmt.Fprintln(c.App.Writer, "made the postoffice", dir)
	p, _, err = open(c)
	if err != nil {
		return err
	}
	return closeFS(p)
}

// closeFS gives back the directory that a postoffice was opened with.
func closeFS(p *postoffice.PostOffice) error {
	if f, ok := p.FS().(interface{ Close() error }); ok {
		return f.Close()
	}
	return nil
}

// program finds a program of the pipeline: beside this one, else in PATH.
func program(name string) (string, error) {
	self, err := os.Executable()
	if err == nil {
		beside := filepath.Join(filepath.Dir(self), name)
		if path, err := exec.LookPath(beside); err == nil {
			return path, nil
		}
	}
	path, err := exec.LookPath(name)
	if err != nil {
		return "", fmt.Errorf("find the program %s: it is neither beside %s nor in PATH", name, self)
	}
	return filepath.Abs(path)
}

// environment is ours with the postoffice and configuration that were chosen.
func environment(settings *config.Config) []string {
	env := os.Environ()
	keep := env[:0]
	for _, e := range env {
		name, _, _ := strings.Cut(e, "=")
		if !slices.Contains([]string{"POSTOFFICE", "ZCONFIG", "NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"}, name) {
			keep = append(keep, e)
		}
	}
	// An empty ZCONFIG is the built-in configuration, also where the machine has one.
	return append(keep, "POSTOFFICE="+settings.PostOffice(), "ZCONFIG="+settings.File)
}

// logFlags hands on what the command line says about logs.
func logFlags(c *cli.Context) []string {
	var args []string
	for _, name := range []string{"log-format", "log-level"} {
		if v := c.String(name); v != "" {
			args = append(args, "--"+name+"="+v)
		}
	}
	return args
}

// banner tells a person where everything is.
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
