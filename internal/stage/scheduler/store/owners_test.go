package store

import (
	"os"
	"path/filepath"
	"testing"

	"zmailer/internal/run/assert"
	"zmailer/internal/stage/scheduler/store/storetest"
	"zmailer/internal/workspec"
)

// K4 K9: the number of a dead agent is given back when its locks are, and not before.
func TestNumberOfADeadAgentIsGivenBackAfterItsLocks(t *testing.T) {
	b, dir := diskBox(t)
	name := b.Queue("a@b", storetest.Rcpt{Line: "smtp h x@h"})
	f, err := b.PO.Queue.Open(name)
	assert.Must(t, err)
	defer f.Close()
	raw, err := f.Read()
	assert.Must(t, err)
	spec, err := workspec.Parse(raw)
	assert.Must(t, err)
	assert.Must(t, f.SetTag(workspec.LockBytes(4711), workspec.TagOffset(spec.Groups[0].Recipients[0].Offset)))
	number := filepath.Join(dir, "owners", "4711")
	assert.Must(t, os.WriteFile(number, nil, 0o644))
	looks := func(wantThere bool) {
		t.Helper()
		for range 2 {
			b.spool.Sweep()
		}
		if _, err := os.Stat(number); (err == nil) != wantThere {
			t.Errorf("owners/4711: got %v, want it there: %v", err, wantThere)
		}
	}
	looks(true)
	if _, err := b.spool.Load(name); err != nil {
		t.Fatal(err)
	}
	b.WantLog("action=unlocked", "owner=4711")
	looks(false)
	b.WantLog("action=swept", "name=owners/4711")
}
