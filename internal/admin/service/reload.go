package service

import (
	"bytes"
	"context"
	"io"
	"slices"
	"time"

	"zmailer/internal/disk/lastgood"
	"zmailer/internal/run/config"
	"zmailer/internal/run/supervise"
)

// HangUp has daemons that run read zmailer.conf again, by zmctl run or systemd, and returns their
// names. Without either it does nothing.
func (s *Service) HangUp(ctx context.Context, names []string, out io.Writer) ([]string, error) {
	st, err := s.Status(ctx)
	if err != nil || st == nil {
		return nil, err
	}
	names = slices.DeleteFunc(slices.Clone(names), func(name string) bool {
		return !slices.ContainsFunc(st.Daemons, func(d supervise.State) bool { return d.Daemon == name && d.Runs })
	})
	if len(names) == 0 {
		return nil, nil
	}
	if s.units != nil {
		return names, s.units.act(ctx, "reload", names, out)
	}
	_, err = s.ask(ctx, Request{Do: "hangup", Daemons: names})
	return names, err
}

// Reloaded is what a daemon has made of a reload. It has names of settings, in the order of
// config.Variables.
type Reloaded struct {
	Daemon  string
	Applied []string // the new values are in use
	Restart []string // the values of its start are in use until it is started again
	Refused string   // why it goes on as before; "": it does not
	Late    bool     // it has not answered
	Unknown bool     // it has noted nothing that could be compared
}

// Reading is by what a daemon went before a reload.
type Reading map[string]lastgood.Followed

// ReadingOf returns by what each of some daemons goes. One that has noted nothing is left out.
func ReadingOf(settings *config.Config, names []string) Reading {
	r := Reading{}
	for _, name := range names {
		if v, err := lastgood.FollowedBy(settings.PostOffice(), name, settings.File); err == nil {
			r[name] = v
		}
	}
	return r
}

// Supervisor is the program name of zmctl run in config.Variable. It reads zmailer.conf at its start
// alone.
const Supervisor = "zmctl"

// reloadPoll is the time between two looks at what a daemon has noted.
const reloadPoll = 20 * time.Millisecond

// AwaitReload waits until daemons have read zmailer.conf, which has the text of settings, or ctx
// is done.
func AwaitReload(ctx context.Context, settings *config.Config, names []string, before Reading) (list []Reloaded) {
	for _, name := range names {
		was, noted := before[name]
		if !noted {
			list = append(list, Reloaded{Daemon: name, Unknown: true})
			continue
		}
		now := was
		tick := time.NewTicker(reloadPoll)
		late := name == Supervisor
		used := func() bool { return bytes.Equal(now.Current, settings.Source()) && now.Refused == "" }
		for !late && !used() && (now.Refused == "" || now.Refused == was.Refused) {
			select {
			case <-tick.C:
				if v, err := lastgood.FollowedBy(settings.PostOffice(), name, settings.File); err == nil {
					now = v
				}
			case <-ctx.Done():
				late = true
			}
		}
		tick.Stop()
		r := Reloaded{Daemon: name, Restart: config.ChangeFor(name, settings.Changed(now.Started)).Restart}
		switch {
		case name == Supervisor:
		case used():
			r.Applied = config.ChangeFor(name, settings.Changed(was.Current)).Applied
		case now.Refused != "":
			r.Refused = now.Refused
		default:
			r.Late = true
		}
		list = append(list, r)
	}
	return list
}
