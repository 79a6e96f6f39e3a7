package crash

import (
	"context"
	"fmt"
	"testing"
	"time"

	"zmailer/internal/disk/cutfs"
	"zmailer/internal/postoffice"
	"zmailer/internal/postoffice/ledger"
)

// A18 K4 K7: stopped after any operation, ledger and disk agree when the next life has
// brought everything to its end: after a kill to the last recipient, after a loss of
// power with the help of the columns for what it took.
func TestLedgerBalancesAfterEveryCut(t *testing.T) {
	t.Parallel()
	for _, v := range allVariants() {
		t.Run(v.String(), func(t *testing.T) {
			t.Parallel()
			r := newRun(t, v)
			r.s.boot = "boot-1"
			ops := r.whole()
			step := 5
			if *every {
				step = 1
			}
			for n := 0; n < ops && !t.Failed(); n += step {
				r.ledgerCut(n, n%2 == 1)
			}
			t.Logf("%d lives", r.lives)
		})
	}
}

func (r *run) ledgerCut(n int, torn bool) {
	r.t.Helper()
	disk, w := newDisk(r.t, r.v), newWorld()
	if torn {
		disk.CutInside(n)
	} else {
		disk.CutAfter(n)
	}
	r.log.Reset()
	r.s.ahead, r.s.boot = 0, "boot-1"
	if err := live(disk, w, r.s); !disk.Dead() {
		r.t.Fatalf("cut %d: the life ended before it: %v", n, err)
	}
	first := r.log.String()
	for _, loss := range r.losses(disk) {
		r.log.Reset()
		r.lives++
		after, next := w.clone(), disk.Restart(loss)
		r.s.ahead, r.s.boot = 0, "boot-1"
		if loss.Power {
			r.s.boot = "boot-2"
		}
		if err := goOn(next, after, r.s); err != nil {
			r.t.Errorf("next life: %v", err)
		}
		r.balanced(next, after, loss)
		if r.t.Failed() {
			r.t.Fatalf("cut %d (torn %v), %v; the disk's operations:\n%s\nlog of the first life:\n%s\nof the next:\n%s", n, torn, loss,
				tail(next.Log(), 200), tail(first, 30), r.log)
		}
	}
}

func (r *run) balanced(disk *cutfs.FS, w *world, loss cutfs.Loss) {
	r.t.Helper()
	po, err := postoffice.Open(postoffice.Config{FS: disk})
	if err != nil {
		r.t.Fatal(err)
	}
	b, err := ledger.Compare(context.Background(), po, ledger.Patience{Looks: 2, Pause: time.Millisecond})
	if err != nil {
		r.t.Fatal(err)
	}
	if len(b.Wrong) > 0 || b.Difference != (ledger.Count{}) {
		r.t.Errorf("the ledger does not balance: %+v", b)
	}
	if loss.Power {
		return
	}
	// After a kill every delivery is on the books, and nothing else is.
	deliveries := 0
	for range w.got {
		deliveries++
	}
	if got := fmt.Sprint(b.Delivered, b.Unknown, b.Found, b.Gone); got != fmt.Sprint(deliveries, 0, 0, 0) {
		r.t.Errorf("got %s delivered, unknown, found, gone, want %d deliveries alone: %+v", got, deliveries, b)
	}
}
