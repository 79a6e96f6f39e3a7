package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/urfave/cli/v2"

	"zmailer/internal/admin/view"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/config"
	"zmailer/internal/run/human"
	"zmailer/internal/ui/term"
)

// startPatience is how long daemons may take to be ready.
const startPatience = 30 * time.Second

const serviceHelp = `
Where systemd has the units of this postoffice, it is asked to do it; else, or with
--direct, a zmctl run in the background does, whose log is LOGFILE, or the file log in the
postoffice. DAEMON is smtpserver, router or scheduler; without one it is about all.
`

const serviceCodes = `
Exit codes: 0 done, also if it was so already, 1 not done, 64 bad arguments, 71 a program
is missing, 78 bad configuration, or the service is frozen.`

func serviceCommands() []*cli.Command {
	direct := &cli.BoolFlag{Name: "direct", Usage: "do not ask systemd, even where it has units"}
	stopTimeout := &cli.DurationFlag{Name: "stop-timeout", Value: 30 * time.Second, Usage: "without systemd: later, kill a daemon that has not ended `TIME` after SIGTERM"}
	return []*cli.Command{
		{
			Name: "start", Usage: "start the daemons in the background", UsageText: "zmctl start [--direct] [DAEMON...]",
			Description: `Starts the daemons that do not run, and returns when they are ready; of one that ends
instead it tells what it said.
` + serviceHelp + serviceCodes,
			Flags:  []cli.Flag{direct, stopTimeout},
			Action: func(c *cli.Context) error { return runService(c, (*steward).start) },
		}, {
			Name: "stop", Usage: "stop the daemons in order", UsageText: "zmctl stop [--direct] [DAEMON...]",
			Description: `Stops smtpserver, then router, then scheduler, and returns when they have ended; each may
finish what it has begun. A zmctl run in the foreground ends, too.
` + serviceHelp + serviceCodes,
			Flags:  []cli.Flag{direct},
			Action: func(c *cli.Context) error { return runService(c, (*steward).stop) },
		}, {
			Name: "restart", Usage: "stop the daemons and start them again", UsageText: "zmctl restart [--direct] [DAEMON...]",
			Description: `Does what stop and start do. zmailer.conf is read anew, which a reload does not do.
` + serviceHelp + serviceCodes,
			Flags:  []cli.Flag{direct, stopTimeout},
			Action: func(c *cli.Context) error { return runService(c, (*steward).restart) },
		},
	}
}

// steward is the daemons of one postoffice, and who runs them.
type steward struct {
	c        *cli.Context
	settings *config.Config
	po       *postoffice.PostOffice
	dir      string
	units    *systemd // nil: systemd has nothing to do with it
	names    []string
}

func runService(c *cli.Context, do func(*steward, context.Context) error) error {
	if err := checkDaemons(c.Args().Slice()); err != nil {
		return err
	}
	settings, err := config.FromCLI(c)
	if err != nil {
		return err
	}
	if c.Command.Name != "stop" {
		if err := ensurePostoffice(c, settings); err != nil {
			return err
		}
	}
	po, dir, err := open(c)
	if err != nil {
		return err
	}
	defer closeFS(po)
	s := &steward{c: c, settings: settings, po: po, dir: dir, names: c.Args().Slice()}
	_, err = ask(c.Context, dir, wish{Do: "status"})
	if !c.Bool("direct") && errors.Is(err, errNoRun) { // a zmctl run that serves it goes before
		s.units = findSystemd(c.Context, "/", settings, c.App.Writer)
	}
	return do(s, c.Context)
}

// notFrozen refuses to start what zmctl freeze-service has stopped.
func (s *steward) notFrozen() error {
	if why, frozen := s.po.Frozen(); frozen {
		return &config.Error{File: filepath.Join(s.dir, postoffice.FreezeFlag), Reason: "the service is frozen (" + why + "); zmctl thaw-service lets it start"}
	}
	return nil
}

// start starts what does not run.
func (s *steward) start(ctx context.Context) error {
	if err := s.notFrozen(); err != nil {
		return err
	}
	if s.units != nil {
		return s.told(ctx, s.units.act(ctx, "start", s.names))
	}
	_, err := ask(ctx, s.dir, wish{Do: "start", Daemons: s.names})
	if !errors.Is(err, errNoRun) {
		return s.told(ctx, err)
	}
	if len(s.names) > 0 && len(s.names) < len(daemonNames()) {
		return errors.New("no zmctl run serves this postoffice; zmctl start starts it with all daemons")
	}
	return s.told(ctx, s.launch(ctx))
}

// stop ends what runs.
func (s *steward) stop(ctx context.Context) error {
	if s.units != nil {
		return s.told(ctx, s.units.act(ctx, "stop", s.names))
	}
	_, err := ask(ctx, s.dir, wish{Do: "stop", Daemons: s.names})
	if errors.Is(err, errNoRun) {
		return s.byHand()
	}
	return s.told(ctx, err)
}

// byHand tells of daemons that nobody we know has started.
func (s *steward) byHand() error {
	spool := view.New(s.po, time.Now())
	for _, name := range []string{"zmctl", "scheduler", "router"} {
		if spool.Runs(name) {
			return fmt.Errorf("a %s that does not take orders runs here; zmctl status shows it, and kill ends it", name)
		}
	}
	fmt.Fprintln(s.c.App.Writer, "nothing runs here")
	return nil
}

// restart stops and starts: of everything in the background zmctl run itself, too, so
// that its program and its configuration are the new ones.
func (s *steward) restart(ctx context.Context) error {
	if err := s.notFrozen(); err != nil {
		return err
	}
	if s.units != nil {
		return s.told(ctx, s.units.act(ctx, "restart", s.names))
	}
	st, err := ask(ctx, s.dir, wish{Do: "status"})
	if errors.Is(err, errNoRun) {
		return s.start(ctx)
	}
	if err == nil && st.Background && len(s.names) == 0 {
		if _, err = ask(ctx, s.dir, wish{Do: "stop"}); err == nil {
			err = s.launch(ctx)
		}
		return s.told(ctx, err)
	}
	if err == nil {
		_, err = ask(ctx, s.dir, wish{Do: "restart", Daemons: s.names})
	}
	return s.told(ctx, err)
}

// told says how it is afterwards.
func (s *steward) told(ctx context.Context, err error) error {
	v, verr := serviceView(ctx, s.dir, s.units)
	if verr == nil && v != nil {
		return errors.Join(err, v.print(s.c.App.Writer, time.Now()))
	}
	if err == nil && verr == nil {
		fmt.Fprintln(s.c.App.Writer, "nothing runs here")
	}
	return errors.Join(err, verr)
}

// serving is who runs the daemons of a postoffice, and how they do.
type serving struct {
	By         string        `json:"by"` // systemd, or zmctl run
	Pid        int           `json:"pid,omitempty"`
	Background bool          `json:"background,omitempty"`
	Log        string        `json:"log,omitempty"`
	Daemons    []daemonState `json:"daemons"`
}

// serviceView asks who runs a postoffice; nil if nobody does who could be asked.
func serviceView(ctx context.Context, dir string, units *systemd) (*serving, error) {
	ctx, cancel := context.WithTimeout(ctx, view.SocketPatience)
	defer cancel()
	st, err := ask(ctx, dir, wish{Do: "status"})
	if err == nil {
		return &serving{By: "zmctl run", Pid: st.Pid, Background: st.Background, Log: st.Log, Daemons: st.Daemons}, nil
	}
	if units == nil && errors.Is(err, errNoRun) {
		return nil, nil
	}
	if units == nil {
		return nil, err
	}
	list, err := units.states(ctx)
	if err != nil {
		return nil, err
	}
	return &serving{By: "systemd", Log: "journalctl -u 'zmailer-*', or zmctl log", Daemons: list}, nil
}

// ended tells whether a daemon does not run that nobody has stopped.
func (v *serving) ended() bool {
	return v != nil && slices.ContainsFunc(v.Daemons, func(st daemonState) bool { return !st.Runs && !st.Stopped })
}

// print writes the daemons as a table.
func (v *serving) print(w io.Writer, now time.Time) error {
	var b strings.Builder
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "DAEMON\tRUNS\tPID\tSINCE\t")
	for i := range v.Daemons {
		st := &v.Daemons[i]
		runs, pid, since := "no", "-", "-"
		if st.Runs {
			runs, pid = "yes", fmt.Sprint(st.Pid)
		}
		if st.Since != nil {
			since = human.Span(now.Sub(*st.Since))
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\n", st.Daemon, runs, pid, since, human.Clean(st.String()))
	}
	err := t.Flush()
	p := term.For(w)
	for line := range strings.Lines(b.String()) {
		if f := strings.Fields(line); len(f) > 1 && f[1] == "no" {
			line = p.Red(line)
		}
		_, werr := io.WriteString(w, strings.TrimRight(line, " \n")+"\n")
		err = errors.Join(err, werr)
	}
	by := v.By
	if v.Pid > 0 {
		by += fmt.Sprintf(", pid %d", v.Pid)
	}
	if v.Log != "" {
		by += "; log: " + v.Log
	}
	_, werr := fmt.Fprintln(w, "run by "+by)
	return errors.Join(err, werr)
}

// printService tells who runs the daemons.
func (st *statusReport) printService(w io.Writer, now time.Time) error {
	var err error
	if st.Service != nil {
		_, werr := fmt.Fprintln(w)
		err = errors.Join(werr, st.Service.print(w, now))
	}
	if st.Frozen != "" {
		_, werr := fmt.Fprintf(w, "\nthe service is frozen: %s; zmctl thaw-service\n", human.Clean(st.Frozen))
		err = errors.Join(err, werr)
	}
	return err
}
