package machine

import (
	"testing"
	"time"
)

var kept []byte

func TestMemoryIsGivenBackAfterWork(t *testing.T) {
	freed := make(chan time.Time, 10)
	r := resting{after: 20 * time.Millisecond, from: 1 << 20, free: func() { freed <- time.Now() }}
	r.allocated = allocated()
	await := func() time.Time {
		select {
		case at := <-freed:
			return at
		case <-time.After(20 * time.Second):
			t.Fatal("nothing was given back")
			panic("unreachable")
		}
	}
	for range 3 {
		kept = make([]byte, 2<<20)
		var last time.Time
		for range 5 { // it waits for the end of all work
			last = time.Now()
			r.worked()
		}
		if at := await(); at.Sub(last) < r.after {
			t.Errorf("it was given back %v after work, want %v at least", at.Sub(last), r.after)
		}
	}
	if r.look(); len(freed) > 0 {
		t.Error("it was given back after next to no work")
	}
}
