package sts

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"zmailer/internal/disk/cutfs"
	"zmailer/internal/run/assert"
	"zmailer/internal/run/logtest"
	"zmailer/internal/stage/agent/agenttest"
)

// The process or the machine stops in every operation of the write of a policy: the next
// process finds the old one or the new one whole, and the sweep leaves nothing else.
func TestPolicySurvivesEveryCut(t *testing.T) {
	now := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	policy := func(id string) *Policy {
		p, err := Parse(good)
		assert.Must(t, err)
		p.Domain, p.ID, p.Fetched = "a.test", id, now
		return p
	}
	agenttest.EveryCut(t, 4, func(cut func(*cutfs.FS)) *cutfs.FS {
		disk := cutfs.New()
		disk.SetClock(func() time.Time { return now })
		assert.Must(t, disk.Mkdir(Dir, 0o755))
		New(Config{FS: disk, Log: slog.New(slog.DiscardHandler)}).keep(policy("old"))
		assert.Must(t, disk.SyncDir(Dir), disk.SyncDir("."))
		proc := disk.Process()
		cut(proc)
		New(Config{FS: proc, Log: slog.New(slog.DiscardHandler)}).keep(policy("new"))
		return proc
	}, func(where string, proc *cutfs.FS, loss cutfs.Loss) {
		again := proc.Restart(loss)
		log := &logtest.Buffer{}
		s := New(Config{FS: again, Log: log.Logger()})
		if p := s.load("a.test"); p == nil || p.ID != "old" && p.ID != "new" || log.String() != "" {
			t.Errorf("%s: got %+v\n%s", where, p, log)
		} else if !proc.Dead() && !loss.Power && p.ID != "new" {
			t.Errorf("%s: got %s", where, p.ID)
		}
		assert.NoError(t, Sweep(again, now.Add(2*time.Hour)))
		entries, err := again.ReadDir(Dir)
		assert.Must(t, err)
		for _, e := range entries {
			if strings.HasPrefix(e.Name, ".") {
				t.Errorf("%s: %s is left", where, e.Name)
			}
		}
	})
}
