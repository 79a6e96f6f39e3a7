package view

import (
	"time"

	"zmailer/internal/run/config"
	"zmailer/internal/stage/scheduler/conf"
)

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
