package tlsrpt

import (
	"io"
	"log/slog"
	"os"
	"testing"
	"time"

	"zmailer/internal/disk/cutfs"
	"zmailer/internal/run/assert"
	"zmailer/internal/stage/agent/agenttest"
)

// The process or the machine stops in every operation of a flush: what was counted before
// a kill is read, what is counted later is read, whatever line the stop has torn.
func TestTornLineHidesNoOther(t *testing.T) {
	now := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	count := func(disk *cutfs.FS, domains ...string) {
		r := New(disk, 0, func() time.Time { return now }, slog.New(slog.DiscardHandler))
		for _, d := range domains {
			r.Add(Session{Domain: d, Type: "sts"})
		}
		r.Close()
	}
	read := func(disk *cutfs.FS) map[string]int {
		f, err := disk.Open(Dir+"/"+Day(now), os.O_RDONLY, 0)
		assert.Must(t, err)
		defer f.Close()
		list, err := Read(io.Reader(f))
		assert.Must(t, err)
		counts := map[string]int{}
		for _, s := range list {
			counts[s.Domain] += s.Count
		}
		return counts
	}
	agenttest.EveryCut(t, 1, func(cut func(*cutfs.FS)) *cutfs.FS {
		disk := cutfs.New()
		assert.Must(t, disk.Mkdir(Dir, 0o755), disk.SyncDir("."))
		count(disk, "before.test")
		proc := disk.Process()
		cut(proc)
		count(proc, "cut.test", "short.test")
		return proc
	}, func(where string, proc *cutfs.FS, loss cutfs.Loss) {
		again := proc.Restart(loss)
		count(again, "after.test", "later.test")
		got := read(again)
		if got["after.test"] != 1 || got["later.test"] != 1 || !loss.Power && got["before.test"] != 1 {
			t.Errorf("%s: got %v", where, got)
		}
	})
}
