package main

import (
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/urfave/cli/v2"

	"zmailer/internal/admin/service"
	"zmailer/internal/admin/view"
	"zmailer/internal/postoffice/alarm"
	"zmailer/internal/run/config"
	"zmailer/internal/run/human"
	"zmailer/internal/ui/text"
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

Alarms are printed at the end: mail that is too old, makes no progress, or is incomplete
(docs/alarms.md).

Exit codes: 0 shown, 1 there are alarms, a daemon has exited unexpectedly, or the postoffice
cannot be read, 64 bad arguments, 78 bad configuration or no postoffice.`,
		Flags:  []cli.Flag{&cli.BoolFlag{Name: "json", Usage: "print one JSON object"}},
		Action: runStatus,
	}
}

// statusReport is what zmctl status prints.
type statusReport struct {
	*view.Overview
	// Service is the state of systemd or zmctl run, if one of them runs the daemons.
	Service *service.Status `json:"service,omitempty"`
	// Frozen is the reason why daemons must not be started.
	Frozen string `json:"frozen,omitempty"`
	// Alarms are conditions that need an operator.
	Alarms []alarm.Alarm `json:"alarms,omitempty"`
}

func runStatus(c *cli.Context) error {
	if err := noArguments(c); err != nil {
		return err
	}
	po, dir, err := open(c)
	if err != nil {
		return err
	}
	defer closeFS(po)
	settings, err := config.FromCLI(c)
	if err != nil {
		return err
	}
	s := view.New(po, time.Now()).With(settings)
	st := &statusReport{Overview: s.Overview(c.Context, dir)}
	if st.Alarms, err = s.Alarms(settings); err != nil {
		return err
	}
	// The counts are useful even if the service does not answer.
	st.Service, _ = service.New(c.Context, settings, po, false).Status(c.Context)
	st.Frozen, _ = po.Frozen()
	if c.Bool("json") {
		err = text.PrintJSON(c.App.Writer, st)
	} else {
		err = errors.Join(text.PrintOverview(c.App.Writer, st.Overview, s.Now), st.printServing(c.App.Writer, s.Now), text.PrintAlarms(c.App.Writer, st.Alarms, s.Now))
	}
	if err == nil && (len(st.Alarms) > 0 || st.Service.Ended()) {
		return cli.Exit("", 1)
	}
	return err
}

// printServing shows what runs the daemons.
func (st *statusReport) printServing(w io.Writer, now time.Time) error {
	var err error
	if st.Service != nil {
		_, werr := fmt.Fprintln(w)
		err = errors.Join(werr, printService(w, st.Service, now))
	}
	if st.Frozen != "" {
		_, werr := fmt.Fprintf(w, "\nthe service is frozen: %s; zmctl thaw-service\n", human.Clean(st.Frozen))
		err = errors.Join(err, werr)
	}
	return err
}
