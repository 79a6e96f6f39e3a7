package service

import (
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
	Other   bool     // what it has read is not what was checked: the file was changed meanwhile
	Unknown bool     // it has noted nothing that could be compared
}

// Reading is by what a daemon went before a reload.
type Reading map[string]lastgood.Followed

// ReadingOf returns by what each of some daemons goes. One that has noted nothing, or is of a
// release that does not answer, is left out.
func ReadingOf(settings *config.Config, names []string) Reading {
	r := Reading{}
	for _, name := range names {
		if v, err := lastgood.FollowedBy(settings.PostOffice(), name, settings.File); err == nil && v.Answer.Began > 0 {
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

// AwaitReload waits until daemons have answered a request to read zmailer.conf that was made at a
// time by lastgood.Now or later, or ctx is done. settings are those of the file as it was checked.
func AwaitReload(ctx context.Context, settings *config.Config, names []string, before Reading, asked time.Duration) (list []Reloaded) {
	for _, name := range names {
		was, noted := before[name]
		if !noted {
			list = append(list, Reloaded{Daemon: name, Unknown: true})
			continue
		}
		now, answered := was, true
		if name != Supervisor {
			now, answered = awaitAnswer(ctx, settings, name, was, asked)
		}
		r := Reloaded{Daemon: name, Restart: config.ChangeFor(name, settings.Changed(now.Started)).Restart}
		switch a := now.Answer; {
		case name == Supervisor:
		case !answered:
			r.Late = true
		case a.Refused != "":
			r.Refused = a.Refused
		case a.Sum != lastgood.SumOf(settings):
			r.Other = true
		default:
			r.Applied = slices.DeleteFunc(config.ChangeFor(name, settings.Changed(was.Current)).Applied, func(s string) bool { return slices.Contains(a.Waiting, s) })
			r.Restart = append(r.Restart, a.Waiting...)
		}
		list = append(list, r)
	}
	return list
}

// awaitAnswer waits for the answer to a reading that has begun at a time or later.
func awaitAnswer(ctx context.Context, settings *config.Config, name string, now lastgood.Followed, asked time.Duration) (v lastgood.Followed, answered bool) {
	tick := time.NewTicker(reloadPoll)
	defer tick.Stop()
	for now.Answer.Began < asked {
		select {
		case <-tick.C:
			if v, err := lastgood.FollowedBy(settings.PostOffice(), name, settings.File); err == nil {
				now = v
			}
		case <-ctx.Done():
			return now, false
		}
	}
	return now, true
}
