package router

import (
	"context"
	"errors"
	"log/slog"
	"path"
	"slices"
	"time"

	"zmailer/internal/postoffice"
	"zmailer/internal/run/config"
	"zmailer/internal/workspec"
)

// finding is what recovery reports once, not at every poll.
type finding struct{ action, name string }

// Recover takes up what dead submitters and dead routers have left, and what this
// one could not give back. It is called at the start and at every poll.
func (r *Router) Recover() error {
	r.releaseHeld()
	done, err := r.po.Router.Recover(postoffice.RouterRecovery{Complete: workspec.Complete, Now: r.c.Now(), Tries: r.c.Tries})
	swept, serr := r.po.Submissions.SweepDrafts(r.c.Now())
	away, ferr := r.po.Submissions.SweepForeign(r.c.Now(), r.c.PublicKeep)
	aside, aerr := r.sweepAside()
	derr := r.resubmit()
	done, err = slices.Concat(done, swept, away, aside), errors.Join(err, serr, ferr, aerr, derr)
	r.mu.Lock()
	defer r.mu.Unlock()
	still := map[finding]struct{}{}
	for _, d := range done {
		if d.Action == postoffice.SetAside {
			r.poison(d.ID.String(), d.Name, d.Detail)
			continue
		}
		level := slog.LevelInfo
		if d.Action == postoffice.Quarantined {
			level = slog.LevelWarn
		}
		if d.Action == postoffice.Incomplete || d.Action == postoffice.Unreadable {
			level = slog.LevelWarn
			k := finding{d.Action, d.Name}
			still[k] = struct{}{}
			if _, again := r.reported[k]; again {
				continue
			}
		}
		r.c.Log.Log(context.Background(), level, "recovered", "action", d.Action, "name", d.Name, "reason", d.Detail)
	}
	r.reported = still
	return err
}

// asidePause is the time between two sweeps of the set-aside areas.
const asidePause = 5 * time.Minute

// sweepAside drops copies in postman/ that are too old, and texts whose messages have
// gone on (M12).
func (r *Router) sweepAside() ([]postoffice.Recovered, error) {
	now := r.c.Now()
	r.mu.Lock()
	due := r.sweptAside.IsZero() || now.Sub(r.sweptAside).Abs() >= asidePause
	if due {
		r.sweptAside = now
	}
	r.mu.Unlock()
	if !due {
		return nil, nil
	}
	copies, err := r.po.Aside.SweepCopies(now, r.c.PostmanKeep, false)
	texts, terr := r.po.Aside.SweepReasons(now, false)
	return append(copies, texts...), errors.Join(err, terr)
}

// secure closes directories that an earlier version made open to users.
func (r *Router) secure() {
	done, err := r.po.Secure()
	if err != nil {
		done = append(done, postoffice.Recovered{Action: postoffice.Unreadable, Name: ".", Detail: err.Error()})
	}
	for _, d := range done {
		r.c.Log.Warn("recovered", "action", d.Action, "name", d.Name, "reason", d.Detail)
	}
}

// settleUnfinished quarantines abandoned files of public/, once, at the
// start (A7). With StrictStart it refuses instead, as a *config.Error.
func (r *Router) settleUnfinished() error {
	done, err := r.po.Submissions.SettleUnfinished(r.c.Now(), postoffice.BootTime(), r.c.StrictStart)
	if unfinished := (*postoffice.UnfinishedError)(nil); errors.As(err, &unfinished) {
		return &config.Error{File: r.c.PostOffice, Reason: "the router does not start", Err: err}
	}
	for _, d := range done {
		r.c.Log.Warn("recovered", "action", d.Action, "name", d.Name, "reason", d.Detail)
	}
	if err != nil {
		// Mail does not depend on it.
		r.c.Log.Warn("recovered", "action", postoffice.Unreadable, "name", postoffice.Public, "reason", err)
	}
	return nil
}

// poison reports a message that is in postman/ because it has crashed routers.
func (r *Router) poison(id, name, why string) {
	if spoolID, err := postoffice.ParseSpoolID(id); err == nil {
		r.engine.NoteReason(path.Dir(name), spoolID, postoffice.WasSetAside, why)
	}
	r.meters.messages.With(resultAside).Add(1)
	r.c.Log.Error("set-aside", "id", id, "name", name, "reason", why,
		"advice", "report it as a defect with the file; zmctl postman resubmit has it tried again")
}
