package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/mattn/go-isatty"
	"github.com/urfave/cli/v2"

	"zmailer/internal/admin/service"
	"zmailer/internal/admin/view"
	"zmailer/internal/disk/lastgood"
	"zmailer/internal/postoffice/alarm"
	"zmailer/internal/run/config"
	"zmailer/internal/run/human"
	"zmailer/internal/stage/smtpserver"
	"zmailer/internal/stage/smtpserver/policy/limits"
	"zmailer/internal/ui/text"
	"zmailer/internal/ui/top"
)

func statusCommand() *cli.Command {
	return &cli.Command{
		Name:      "status",
		Usage:     "count the files of each directory, and show which daemons run",
		UsageText: "zmctl status [--json]",
		Description: `Counts the files in each directory now, with the age of the oldest message of each
state, the recipients of queued mail by their states, and lists the processes that hold
an owner number. The counts are those of the disk: ls | wc -l gives the same. If more than
20000 messages are queued and the scheduler runs, the counts of queue/ and transport/ come
from the scheduler; zmctl check counts the files. docs/spool.md explains the states. zmctl
removed, zmctl orders and, for quarantine/, zmctl check show files that no daemon
processes. Daemons that systemd or zmctl run has started are listed with their age and any
problem. Recipients are counted for at most 20000 specifications; zmctl queue --counts
counts more.

What operators have suspended is printed after that (docs/suspend.md), and a line about the users
and senders that have used most of a rate, if it is more than half (docs/limits.md). Alarms are printed at the
end: mail that is too old, makes no progress, or is incomplete, files that cannot be used,
servers that give no answer, and certificates that end soon (docs/alarms.md).

Exit codes: 0 shown, 1 there are alarms, a daemon has exited unexpectedly, or the postoffice
cannot be read, 64 bad arguments, 78 bad configuration (shown nevertheless) or no postoffice.`,
		Flags:  []cli.Flag{&cli.BoolFlag{Name: "json", Usage: "print one JSON object"}},
		Action: openedAnyway(none, runStatus),
	}
}

type statusReport struct {
	*view.Overview
	// Service is the state of systemd or zmctl run, if one of them runs the daemons.
	Service *service.Status `json:"service,omitempty"`
	// Frozen is the reason why daemons must not be started.
	Frozen string `json:"frozen,omitempty"`
	// Suspensions are what operators have suspended: deliveries, or the acceptance of mail.
	Suspensions []view.Suspension `json:"suspensions,omitempty"`
	// Rates are those of which users and senders have the least left, if it is less than half.
	Rates []limits.Usage `json:"rates,omitempty"`
	// Alarms are conditions that need an operator.
	Alarms []alarm.Alarm `json:"alarms,omitempty"`
}

func runStatus(c *cli.Context, o *target, _ struct{}) error {
	s := view.New(o.PostOffice, time.Now())
	survey := view.NewSurvey(s, o.settings)
	st := &statusReport{Overview: survey.Overview(c.Context, o.dir)}
	var err error
	if st.Alarms, err = survey.Alarms(); err != nil {
		return err
	}
	// The counts are useful even if the service does not answer.
	st.Service, _ = service.New(c.Context, o.settings, o.PostOffice, false).Status(c.Context)
	st.Frozen, _ = o.Frozen()
	st.Suspensions = view.Suspensions(s.Suspended())
	st.Rates = usedRates(c, o.dir)
	if c.Bool("json") {
		err = text.PrintJSON(c.App.Writer, st)
	} else {
		err = errors.Join(text.PrintOverview(c.App.Writer, st.Overview, s.Now), st.printServing(c.App.Writer, s), text.PrintAlarms(c.App.Writer, st.Alarms, s.Now))
	}
	if err == nil && (len(st.Alarms) > 0 || st.Service.Ended()) {
		return cli.Exit("", 1)
	}
	return err
}

// printServing shows what runs the daemons.
func (st *statusReport) printServing(w io.Writer, s *view.Spool) error {
	var err error
	if st.Service != nil {
		_, werr := fmt.Fprintln(w)
		err = errors.Join(werr, text.PrintService(w, st.Service, s.Now))
	}
	if st.Frozen != "" {
		_, werr := fmt.Fprintf(w, "\nthe service is frozen: %s; zmctl thaw-service\n", human.Clean(st.Frozen))
		err = errors.Join(err, werr)
	}
	if list := s.Suspended(); len(list) > 0 {
		fmt.Fprintln(w)
		text.PrintSuspensions(w, list, s.Now)
	}
	if len(st.Rates) > 0 {
		_, werr := fmt.Fprintf(w, "\n%s\n", ratesLine(st.Rates))
		err = errors.Join(err, werr)
	}
	return err
}

func topCommand() *cli.Command {
	return &cli.Command{
		Name:      "top",
		Usage:     "show stages, threads and rates, and update them",
		UsageText: "zmctl top [--interval TIME] [--once | --count N] [--threads N] [--json]",
		Description: `Shows the number of messages in each stage and the age of the oldest, the rates of messages
and recipients, the scheduler's threads with the most urgent at the top, and alarms. On a
terminal it updates the display until you press q, with graphs of the last minutes; ? lists
the keys. In a pipe, with --once or --json, it prints a snapshot after --interval, because
rates are measured between two samples.

    zmctl top
    zmctl top --once
    zmctl top --json --count 0 --interval 10s | ...

Counts come from the disk, those of the queue from the scheduler if it answers. The command
changes nothing, and needs no scheduler. See docs/top.md.

Exit codes: 0 shown, 1 failed, 71 the program zmtop is missing.`,
		Flags: []cli.Flag{
			&cli.DurationFlag{Name: "interval", Value: time.Second, Usage: "update every `TIME`"},
			&cli.BoolFlag{Name: "once", Usage: "print one snapshot"},
			&cli.IntFlag{Name: "count", Value: 1, Usage: "print `N` snapshots; 0: until it is interrupted"},
			&cli.IntFlag{Name: "threads", Value: 20, Usage: "print at most `N` threads; 0: all"},
			&cli.BoolFlag{Name: "json", Usage: "print one object per line for each snapshot"},
		},
		Action: runTop,
	}
}

// shortestLook is the minimum interval between two samples.
const shortestLook = 100 * time.Millisecond

func runTop(c *cli.Context) error {
	if err := noArguments(c); err != nil {
		return err
	}
	if c.Int("count") < 0 || c.Int("threads") < 0 || c.Duration("interval") < shortestLook {
		return cli.Exit(fmt.Sprintf("zmctl top: --count and --threads must not be negative, --interval must be at least %v", shortestLook), config.ExitUsage)
	}
	printed := c.Bool("once") || c.Bool("json") || c.IsSet("count")
	if out, ok := c.App.Writer.(*os.File); ok && !printed && isatty.IsTerminal(out.Fd()) && isatty.IsTerminal(os.Stdin.Fd()) && os.Getenv("TERM") != "dumb" {
		return becomeTop(c)
	}
	po, dir, err := open(c)
	if err != nil {
		return err
	}
	defer closeFS(po)
	return text.Quiet(snapshots(c, top.New(po, dir)))
}

// snapshots prints samples. The first sample is used only for the rates.
func snapshots(c *cli.Context, s *top.Sampler) error {
	defer s.Close()
	if _, err := s.Take(c.Context); err != nil {
		return err
	}
	tick := time.NewTicker(c.Duration("interval"))
	defer tick.Stop()
	for n := 0; c.Int("count") == 0 || n < c.Int("count"); n++ {
		select {
		case <-tick.C:
		case <-c.Context.Done():
			return nil
		}
		x, err := s.Take(c.Context)
		if err != nil {
			return nil // interrupted
		}
		if c.Bool("json") {
			err = text.JSONLines(c.App.Writer).Encode(x)
		} else {
			if n > 0 {
				fmt.Fprintln(c.App.Writer)
			}
			err = x.Print(c.App.Writer, c.Int("threads"))
		}
		if err != nil || c.Bool("once") {
			return err
		}
	}
	return nil
}

// becomeTop makes this process zmtop.
func becomeTop(c *cli.Context) error {
	settings, err := lastgood.Accepted(c)
	if err != nil {
		return err
	}
	path, err := service.Program("zmtop")
	if err != nil {
		return cli.Exit(errors.Join(err, errors.New("zmctl top --once does without it")), config.ExitOSErr)
	}
	args := []string{"zmtop", "--interval", c.Duration("interval").String()}
	if err := syscall.Exec(path, args, service.Environment(settings)); err != nil {
		return fmt.Errorf("start %s: %w", path, err)
	}
	return nil
}

func ratesCommand() *cli.Command {
	return &cli.Command{
		Name:      "rates",
		Usage:     "show who has used most of the rates of smtpserver",
		UsageText: "zmctl rates [--top N] [--json]",
		Description: `Asks the running smtpserver which users, addresses and envelope senders have the least left of
SMTPMESSAGERATE, SMTPRCPTRATE, SMTPSENDERMESSAGERATE, SMTPSENDERRCPTRATE, SMTPCONNECTRATE,
AUTHFAILURES and RATELIMITS, those with the least first. What is left may come at once, and more of it comes back all
the time (docs/limits.md). zmctl test smtp shows the rates of one client and sender.

    zmctl rates
    zmctl rates --top 100 --json

Exit codes: 0 shown, 1 no smtpserver with rates runs, 64 bad arguments, 78 bad configuration.`,
		Flags: []cli.Flag{
			&cli.IntFlag{Name: "top", Value: 20, Usage: "show at most `N`, up to 1000"},
			&cli.BoolFlag{Name: "json", Usage: "print one JSON object"},
		},
		Action: openedAnyway(none, runRates),
	}
}

func runRates(c *cli.Context, o *target, _ struct{}) error {
	if c.Int("top") < 1 || c.Int("top") > 1000 {
		return cli.Exit("zmctl rates: --top must be from 1 to 1000", config.ExitUsage)
	}
	list, err := smtpserver.AskRates(c.Context, o.dir, smtpserver.RatesQuestion{Top: c.Int("top")})
	if errors.Is(err, smtpserver.ErrNoRates) {
		return cli.Exit("zmctl rates: no smtpserver with rates runs; see docs/limits.md", 1)
	}
	if err != nil {
		return err
	}
	if c.Bool("json") {
		return text.PrintJSON(c.App.Writer, map[string]any{"rates": list})
	}
	t := tabwriter.NewWriter(c.App.Writer, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "LEFT\tOF\tPER\tLIMIT\tWHO")
	for i := range list {
		u := &list[i]
		fmt.Fprintf(t, "%d\t%d\t%s\t%s\t%s\n", u.Left(), u.Count, human.Span(u.Per), u.Limit, human.Clean(u.Who))
	}
	return t.Flush()
}

// shownRates is how many rates zmctl status has.
const shownRates = 3

// usedRates returns those of which most is used, if it is more than half.
func usedRates(c *cli.Context, dir string) (list []limits.Usage) {
	all, _ := smtpserver.AskRates(c.Context, dir, smtpserver.RatesQuestion{Top: shownRates}) // zmctl rates has the error
	for _, u := range all {
		if 2*u.Used > u.Count {
			list = append(list, u)
		}
	}
	return list
}

// ratesLine is the line of zmctl status.
func ratesLine(list []limits.Usage) string {
	words := make([]string, 0, len(list))
	for _, u := range list {
		words = append(words, fmt.Sprintf("%s %s: %d of %d in %s left", u.Limit, human.Clean(u.Who), u.Left(), u.Count, human.Span(u.Per)))
	}
	return "rates mostly used: " + strings.Join(words, "; ") + " (zmctl rates)"
}
