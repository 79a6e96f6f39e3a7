package view

import (
	"context"
	"encoding/json"
	"time"

	"zmailer/internal/run/config"
	"zmailer/internal/stage/scheduler/conf"
	"zmailer/internal/wire/mailq"
)

// countsPatience is how long status waits for the scheduler's counts before it counts
// the files itself.
const countsPatience = 5 * time.Second

// schedulerCounts asks the running scheduler for its counts. It returns nil if the scheduler
// does not answer, or has so few messages that counting their files takes no longer.
func schedulerCounts(ctx context.Context, dir string) *mailq.StatusInfo {
	a, err := CallScheduler(ctx, dir)
	if err != nil {
		return nil
	}
	defer a.Close()
	if a.Conn.SetDeadline(time.Now().Add(countsPatience)) != nil {
		return nil
	}
	st, err := a.Status()
	if err != nil || st.Messages <= readLimit {
		return nil
	}
	return &st
}

// counted returns a directory of the queue by the scheduler's counts.
func counted(top string, c *mailq.StatusInfo) Directory {
	return Directory{Name: top, Files: c.Messages, States: []StateCount{{State: StateQueued, Files: c.Messages, OldestSeconds: c.OldestSeconds}}}
}

// Status returns the counts of the scheduler.
func (a *SchedulerClient) Status() (st mailq.StatusInfo, err error) {
	_, err = a.Ask(mailq.Request{Kind: mailq.JSONStatus}, func(line string) error {
		return json.Unmarshal([]byte(line), &st)
	})
	return st, err
}

// Expiry returns how long mail of each thread is tried by scheduler.conf as it is now; 0:
// for ever. Threads that no clause serves are left out, all of them if the file cannot be
// used.
func Expiry(settings *config.Config, threads []Thread) map[Thread]time.Duration {
	file, err := conf.Load(settings, true) // no agent is started
	if err != nil {
		return nil
	}
	after := map[Thread]time.Duration{}
	for _, t := range threads {
		if s := file.Match(t.Channel, t.Host); s != nil {
			after[t] = s.GiveUp()
		}
	}
	return after
}
