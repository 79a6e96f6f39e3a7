package backoff

import (
	"testing"
	"time"
)

func TestWaitsDoubleUpToALimit(t *testing.T) {
	wait := time.Duration(0)
	for _, want := range []time.Duration{5, 10, 20, 40, 50, 50} {
		if wait = Next(wait, 5, 50); wait != want {
			t.Fatalf("got %d, want %d", wait, want)
		}
	}
}
