package agenttest

import (
	"fmt"
	"testing"

	"zmailer/internal/disk/cutfs"
)

// EveryCut stops a process before each of its operations in turn. run makes a disk and runs
// the process on it, which it lets cut stop; it returns the process. after is called with
// each way in which a disk may lose what was not synced. least is how many operations there
// must be.
func EveryCut(t *testing.T, least int, run func(cut func(*cutfs.FS)) *cutfs.FS, after func(where string, proc *cutfs.FS, loss cutfs.Loss)) {
	t.Helper()
	for n := 0; ; n++ {
		proc := run(func(p *cutfs.FS) { p.CutInside(n) })
		over := !proc.Dead()
		for _, loss := range proc.Losses() {
			after(fmt.Sprintf("operation %d, %v", n, loss), proc, loss)
		}
		if t.Failed() {
			t.Log(proc.Log())
		}
		if over || t.Failed() {
			if over && n < least {
				t.Errorf("got %d operations, want at least %d", n, least)
			}
			return
		}
	}
}
