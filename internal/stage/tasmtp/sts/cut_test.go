package sts

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"zmailer/internal/disk/cutfs"
	"zmailer/internal/run/assert"
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
	for n := 0; ; n++ {
		disk := cutfs.New()
		disk.SetClock(func() time.Time { return now })
		assert.Must(t, disk.Mkdir(Dir, 0o755))
		New(Config{FS: disk, Log: slog.New(slog.DiscardHandler)}).keep(policy("old"))
		for _, dir := range []string{Dir, "."} {
			assert.Must(t, disk.SyncDir(dir))
		}
		proc := disk.Process()
		proc.CutInside(n)
		New(Config{FS: proc, Log: slog.New(slog.DiscardHandler)}).keep(policy("new"))
		over := !proc.Dead()
		for _, loss := range proc.Losses() {
			where := fmt.Sprintf("operation %d, %v", n, loss)
			again := proc.Restart(loss)
			var log bytes.Buffer
			s := New(Config{FS: again, Log: slog.New(slog.NewTextHandler(&log, nil))})
			if p := s.load("a.test"); p == nil || p.ID != "old" && p.ID != "new" || log.Len() > 0 {
				t.Errorf("%s: got %+v\n%s", where, p, &log)
			} else if over && !loss.Power && p.ID != "new" {
				t.Errorf("%s: got %s", where, p.ID)
			}
			if err := Sweep(again, now.Add(2*time.Hour)); err != nil {
				t.Errorf("%s: %v", where, err)
			}
			entries, err := again.ReadDir(Dir)
			assert.Must(t, err)
			for _, e := range entries {
				if strings.HasPrefix(e.Name, ".") {
					t.Errorf("%s: %s is left", where, e.Name)
				}
			}
		}
		if over || t.Failed() {
			if n < 4 {
				t.Errorf("got %d operations: too few to be a write", n)
			}
			return
		}
	}
}
