package engine

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"zmailer/internal/stage/scheduler/thread"
)

// K12: a change that the disk refuses is tried again after a second, after two, and so
// on up to a minute; the trouble is told once, and the next one begins anew.
func TestPauseOfAFailingDiskDoublesUpToAMinute(t *testing.T) {
	b, dir := diskBox(t)
	e := newEngine(Config{Conf: b.spool.Conf, Dir: dir, Log: b.spool.Log}, b.PO)
	e.pool = newPool(e.intake.load)
	defer e.pool.close()
	e.now = time.Unix(2e9, 0)
	m := &thread.Message{Number: 7, Stamp: e.now.UnixNano(), Open: 1}
	m.SetName("7-1")
	e.messages.put(m)
	full, tries := true, 0
	change := op{run: func() error {
		tries++
		if full {
			return unix.ENOSPC
		}
		return nil
	}}
	next := func() {
		<-e.box.wake
		for _, fn := range e.box.take(nil) {
			fn()
		}
	}
	for range 2 {
		full, tries = true, 0
		e.changes.do(m, change)
		var got []string
		for range 8 {
			next()
			wait := e.core.Next().Sub(e.now)
			got = append(got, wait.String())
			e.now = e.now.Add(wait)
			if _, due := e.core.Advance(e.now); len(due) != 1 {
				t.Fatalf("after %v nothing is to be tried again", wait)
			}
			full = len(got) < 8
			e.ends.remind(m)
		}
		next()
		if want := "[1s 2s 4s 8s 16s 32s 1m0s 1m0s]"; fmt.Sprint(got) != want {
			t.Errorf("got %v, want %s", got, want)
		}
		if tries != 9 || e.changes.busy[m] != nil {
			t.Errorf("tried %d times, want 9 and nothing left: %+v", tries, e.changes.busy[m])
		}
		e.core.Advance(e.now)
	}
	if n := strings.Count(b.Log.String(), "msg=disk"); n != 2 {
		t.Errorf("two troubles were told %d times", n)
	}
}
