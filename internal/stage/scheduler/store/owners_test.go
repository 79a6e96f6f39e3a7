package store

import (
	"os"
	"path/filepath"
	"testing"

	"zmailer/internal/stage/scheduler/store/storetest"
	"zmailer/internal/workspec"
)

// K4 K9: the number of a dead agent is given back when its locks are, and not before.
func TestNumberOfADeadAgentIsGivenBackAfterItsLocks(t *testing.T) {
	b, dir := diskBox(t)
	name := b.Queue("a@b", storetest.Rcpt{Line: "smtp h x@h"})
	f, err := b.PO.Queue.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	raw, err := f.Read()
	if err != nil {
		t.Fatal(err)
	}
	spec, err := workspec.Parse(raw)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.SetTag(workspec.LockBytes(4711), workspec.TagOffset(spec.Groups[0].Recipients[0].Offset)); err != nil {
		t.Fatal(err)
	}
	number := filepath.Join(dir, "owners", "4711")
	if err := os.WriteFile(number, nil, 0o644); err != nil {
		t.Fatal(err)
	}
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
