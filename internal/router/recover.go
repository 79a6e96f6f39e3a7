package router

import (
	"context"
	"errors"
	"log/slog"

	"zmailer/internal/postoffice"
	"zmailer/internal/workspec"
)

// told is a finding of recovery that is said once, not at every poll.
type told struct{ action, name string }

// Recover takes up what dead submitters and dead routers have left, and what this
// one could not give back. It is called at the start and at every poll.
func (r *Router) Recover() error {
	r.giveBackHeld()
	done, err := r.po.RecoverRouter(workspec.Complete)
	swept, serr := r.po.SweepDrafts(r.c.Now())
	done, err = append(done, swept...), errors.Join(err, serr)
	r.mu.Lock()
	defer r.mu.Unlock()
	still := map[told]struct{}{}
	for _, d := range done {
		level := slog.LevelInfo
		if d.Action == postoffice.Incomplete || d.Action == postoffice.Unreadable {
			level = slog.LevelWarn
			k := told{d.Action, d.Name}
			still[k] = struct{}{}
			if _, again := r.told[k]; again {
				continue
			}
		}
		r.c.Log.Log(context.Background(), level, "recovered", "action", d.Action, "name", d.Name, "reason", d.Detail)
	}
	r.told = still
	return err
}
