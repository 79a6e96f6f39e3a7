package crash

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// A loss of power may repeat what was delivered in the last seconds, and nothing else:
// everything has reached the disk after some operation, a minute passes, the pipeline
// goes on and the power is lost. What was delivered and marked before that minute is
// not delivered again, whatever is lost of what came after.
func TestWhatWasDeliveredAMinuteAgoIsNotRepeated(t *testing.T) {
	t.Parallel()
	for _, v := range allVariants() {
		t.Run(v.String(), func(t *testing.T) {
			t.Parallel()
			r := newRun(t, v)
			ops := r.whole()
			old := 0
			for m := 80 + r.random.IntN(5); m < ops; m += 5 {
				for range 4 {
					old += r.cutLater(m, m+1+r.random.IntN(min(60, ops-m)))
					if t.Failed() {
						return
					}
				}
			}
			t.Logf("%d lives, in which %d deliveries were older than a minute", r.lives, old)
			if old < 300 {
				t.Errorf("got %d deliveries that were old at the cut: too few to show anything", old)
			}
		})
	}
}

// cutLater has everything reach the disk after m operations, cuts after n, and returns
// how many deliveries were old then.
func (r *run) cutLater(m, n int) (old int) {
	r.t.Helper()
	disk, w := newDisk(r.t, r.v), newWorld()
	disk.CutAfter(n)
	disk.WriteBackAfter(m)
	r.log.Reset()
	r.s.ahead, r.s.minute = 0, func() bool { return disk.Ops() >= m }
	_ = live(disk, w, r.s) // errs where it is cut
	r.s.minute = nil
	first := r.log.String()
	for key, at := range w.marked {
		if at <= m && several(key) && w.got[key] == 1 {
			old++
		}
	}
	for range 4 {
		loss := disk.RandomLoss(r.random)
		name := fmt.Sprintf("everything on the disk after %d, cut after %d, %v", m, n, loss)
		r.log.Reset()
		after, next := w.clone(), disk.Restart(loss)
		r.lives++
		r.s.ahead = time.Minute
		if err := goOn(next, after, r.s); err != nil {
			r.t.Errorf("%s: next life: %v", name, err)
		}
		r.check(name, after, nil, next, false)
		for key, at := range w.marked {
			// A message to one recipient ends right after its delivery; no minute passes.
			if at <= m && several(key) && after.got[key] > w.got[key] {
				r.t.Errorf("%s: %s was delivered and marked a minute before, and is delivered again", name, key)
			}
		}
		if r.t.Failed() {
			r.t.Fatalf("changes that no sync covered:\n%s\nthe disk's operations:\n%s\nlog of the first life:\n%s\nof the next:\n%s",
				disk.Changes(loss), tail(disk.Log(), n-m+12), tail(first, 30), r.log)
		}
	}
	return old
}

// several reports whether the message of subject/recipient has more recipients.
func several(key string) bool {
	subject, _, _ := strings.Cut(key, "/")
	for _, m := range load {
		if m.subject == subject {
			return len(m.want) > 1 || m.report
		}
	}
	return false
}
