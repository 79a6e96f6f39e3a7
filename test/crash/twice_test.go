package crash

import (
	"fmt"
	"testing"

	"zmailer/internal/disk/cutfs"
	"zmailer/internal/postoffice"
)

// K7: the life after a cut is cut, too, while it recovers or later; the third brings
// everything to its end. Clean-up goes on after any step of it.
func TestCutDuringRecoveryKeepsAcceptedMail(t *testing.T) {
	t.Parallel()
	for _, v := range allVariants() {
		t.Run(v.String(), func(t *testing.T) {
			t.Parallel()
			r := newRun(t, v)
			step := 3
			if *every {
				step = 1
			}
			ops := r.whole()
			for n := r.random.IntN(step); n < ops; n += step {
				for range 4 {
					r.cutTwice(n)
					if t.Failed() {
						return
					}
				}
			}
			t.Logf("%d lives", r.lives)
		})
	}
}

// cutTwice cuts a first life after n operations, and the next one early or late.
func (r *run) cutTwice(n int) {
	r.t.Helper()
	disk, w := newDisk(r.t, r.v), newWorld()
	disk.CutAfter(n)
	r.log.Reset()
	r.s.ahead = 0
	_ = live(disk, w, r.s) // errs where it is cut
	first := r.log.String()
	loss := r.killOrLoss(disk)
	name := fmt.Sprintf("cut after %d, %v", n, loss)
	next := disk.Restart(loss)
	doubts := map[string]int{}
	for key := range w.doubt {
		doubts[key]++
	}
	clear(w.doubt)
	k := r.random.IntN(30)
	if r.random.IntN(3) == 0 {
		k = r.random.IntN(200)
	}
	if next.CutAfter(k); r.random.IntN(2) == 0 {
		next.CutInside(k)
	}
	r.log.Reset()
	_ = goOn(next, w, r.s) // errs where it is cut, if it gets so far
	second := r.log.String()
	r.before = second
	for key := range w.doubt {
		doubts[key]++
	}
	again := r.killOrLoss(next)
	name += fmt.Sprintf("; cut after %d, %v", k, again)
	changes := next.Changes(again)
	last := next.Restart(again)
	r.log.Reset()
	r.lives++
	power := loss.Power || again.Power
	if power {
		r.promises(name, last, w)
	}
	if err := goOn(last, w, r.s); err != nil {
		r.t.Errorf("%s: last life: %v", name, err)
	}
	r.check(name, w, nil, last, false)
	if gone := r.names(last, postoffice.Quarantine); !power && len(gone) > 0 {
		r.t.Errorf("%s: left: %s", name, gone)
	}
	for key, got := range w.got {
		if !power && got > 1+doubts[key] {
			r.t.Errorf("%s: %s was delivered %d times, %d of them in doubt", name, key, got, doubts[key])
		}
	}
	if r.t.Failed() {
		r.t.Fatalf("-seed %d; changes at the second cut:\n%s\nthe disk's operations:\n%s\nlog of the first life:\n%s\nof the second:\n%s\nof the last:\n%s",
			*seed, changes, tail(last.Log(), 120), tail(first, 30), second, r.log)
	}
}

// killOrLoss is one of three times a kill.
func (r *run) killOrLoss(disk *cutfs.FS) cutfs.Loss {
	if r.random.IntN(3) == 0 {
		return cutfs.KeepAll()
	}
	return disk.RandomLoss(r.random)
}
