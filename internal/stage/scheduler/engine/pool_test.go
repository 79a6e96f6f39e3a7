package engine

import (
	"testing"
	"time"
)

// Whoever learns from one exclusive step that it is done may come with the next one
// before the pool has noticed the end of the first: a look at transport/ did, its step
// was dropped, and the scheduler looked at nothing more.
func TestExclusiveStepAfterExclusiveStepIsRun(t *testing.T) {
	p := newPool(func([]string) {})
	defer p.close()
	done := make(chan string, 3)
	p.exclusively(func() {
		p.exclusively(func() { done <- "second" })
		p.do(func() { done <- "change" })
		done <- "first"
	})
	for _, want := range []string{"first", "second", "change"} {
		select {
		case got := <-done:
			if got != want {
				t.Errorf("%s was run, want %s", got, want)
			}
		case <-time.After(time.Minute):
			t.Fatalf("%s was never run", want)
		}
	}
}
