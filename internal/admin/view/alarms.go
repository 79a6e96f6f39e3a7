package view

import (
	"errors"
	"fmt"
	"slices"

	"zmailer/internal/postoffice"
	"zmailer/internal/postoffice/alarm"
)

// Alarms returns what needs an operator: what the scheduler found in its last scan or, if none
// runs, what the directories show without it.
func (v *Survey) Alarms() ([]alarm.Alarm, error) {
	limits, err := alarm.ParseLimits(v.settings.String("ALARMS", ""))
	if err != nil {
		return nil, v.settings.Invalid("ALARMS", "cannot be used", err)
	}
	var list []alarm.Alarm
	if v.spool.Runs("scheduler") {
		b, err := v.spool.PO.ReadAlarms()
		if err != nil {
			return nil, err
		}
		list = alarm.Parse(b)
	} else if list, err = v.tooOld(limits); err != nil {
		return nil, err
	}
	// These are as old as the daemons' last look, not as the scheduler's.
	list = slices.DeleteFunc(list, func(a alarm.Alarm) bool { return a.Kind == alarm.Refused || a.Kind == alarm.Certificate })
	list = append(list, v.spool.PO.ConfigAlarms(v.spool.Now)...)
	for _, d := range []struct{ dir, daemon string }{{postoffice.Router, "router"}, {postoffice.Transport, "scheduler"}} {
		if v.spool.Runs(d.daemon) {
			continue
		}
		some, err := v.any(d.dir)
		if d.dir == postoffice.Router {
			for _, further := range v.spool.RouterDirs()[1:] {
				more, ferr := v.any(further)
				some, err = some || more, errors.Join(err, ferr)
			}
		}
		if err != nil {
			return list, err
		}
		if some {
			list = append(list, alarm.Alarm{Kind: alarm.Down, Subject: d.daemon, Since: v.spool.Now, Text: "mail waits in " + d.dir + "/ and it does not run"})
		}
	}
	return list, nil
}

// tooOld returns the part of the scheduler's look that needs no scheduler.
func (v *Survey) tooOld(l alarm.Limits) (list []alarm.Alarm, err error) {
	for _, d := range l.Places() {
		st, err := v.spool.PO.Standing(d.Dir)
		if err != nil {
			return list, err
		}
		if a, ok := alarm.Age(d.Dir, st.Count, st.Oldest, d.Limit, v.spool.Now); ok {
			list = append(list, a)
		}
	}
	return list, nil
}

// any reports whether a directory holds a message or specification.
func (v *Survey) any(dir string) (some bool, err error) {
	enough := fmt.Errorf("enough")
	found := func(string) error {
		some = true
		return enough
	}
	if dir == postoffice.Transport {
		if err = v.spool.PO.Queue.List(found); some {
			err = nil
		}
		return some, err
	}
	st, err := v.spool.PO.Standing(dir)
	return st.Count > 0, err
}
