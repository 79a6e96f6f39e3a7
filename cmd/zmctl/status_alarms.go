package main

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"zmailer/internal/postoffice"
	"zmailer/internal/postoffice/alarm"
	"zmailer/internal/run/config"
	"zmailer/internal/run/human"
	"zmailer/internal/ui/term"
)

// alarms are what needs a person: what the scheduler saw in its last look, or if none
// runs, what the directories tell without it.
func (s *spool) alarms(c *config.Config) ([]alarm.Alarm, error) {
	limits, err := alarm.ParseLimits(c.String("ALARMS", ""))
	if err != nil {
		return nil, c.Invalid("ALARMS", "cannot be used", err)
	}
	var list []alarm.Alarm
	if s.runs("scheduler") {
		b, err := s.po.ReadAlarms()
		if err != nil {
			return nil, err
		}
		list = alarm.Parse(b)
	} else if list, err = s.tooOld(limits); err != nil {
		return nil, err
	}
	for _, d := range []struct{ dir, daemon string }{{postoffice.Router, "router"}, {postoffice.Transport, "scheduler"}} {
		if s.runs(d.daemon) {
			continue
		}
		some, err := s.any(d.dir)
		if d.dir == postoffice.Router {
			for _, further := range s.routerDirs()[1:] {
				more, ferr := s.any(further)
				some, err = some || more, errors.Join(err, ferr)
			}
		}
		if err != nil {
			return list, err
		}
		if some {
			list = append(list, alarm.Alarm{Kind: alarm.Down, Subject: d.daemon, Since: s.now, Text: "mail waits in " + d.dir + "/ and it does not run"})
		}
	}
	return list, nil
}

// tooOld is the part of the scheduler's look that needs no scheduler.
func (s *spool) tooOld(l alarm.Limits) (list []alarm.Alarm, err error) {
	for _, d := range l.Places() {
		st, err := s.po.Standing(d.Dir)
		if err != nil {
			return list, err
		}
		if a, ok := alarm.Age(d.Dir, st.Count, st.Oldest, d.Limit, s.now); ok {
			list = append(list, a)
		}
	}
	return list, nil
}

// any tells whether a directory holds a message or specification.
func (s *spool) any(dir string) (some bool, err error) {
	enough := fmt.Errorf("enough")
	found := func(string) error {
		some = true
		return enough
	}
	if dir == postoffice.Transport {
		if err = s.po.ListTransport(found); some {
			err = nil
		}
		return some, err
	}
	st, err := s.po.Standing(dir)
	return st.Count > 0, err
}

// printAlarms writes them as a table.
func printAlarms(w io.Writer, list []alarm.Alarm, now time.Time) error {
	if len(list) == 0 {
		return nil
	}
	var b strings.Builder
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "ALARM\tWHERE\tFOR\tWHAT")
	for _, a := range list {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", a.Kind, human.Clean(a.Subject), human.Span(now.Sub(a.Since)), human.Clean(strings.TrimSpace(a.Text)))
	}
	err := t.Flush()
	_, werr := fmt.Fprint(w, "\n"+term.For(w).Red(b.String()))
	return errors.Join(err, werr)
}
