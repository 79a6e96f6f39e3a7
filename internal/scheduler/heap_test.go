package scheduler

import (
	"testing"
	"time"

	"zmailer/internal/scheduler/thread"
)

// What reading many messages has used is given back once they have stopped coming, and not
// for a few more.
func TestHeapIsTrimmedWhenManyMessagesHaveCome(t *testing.T) {
	e := &engine{now: time.Unix(2e9, 0)}
	next := uint64(1)
	come := func(n int) {
		for range n {
			e.messages.put(&thread.Message{Number: next})
			e.grown()
			next++
		}
	}
	leave := func(n int) {
		for range n {
			next--
			e.messages.remove(e.messages.get(next))
		}
	}
	wait := func(d time.Duration) {
		e.now = e.now.Add(d)
		e.trimSoon()
	}
	for _, step := range []struct {
		name string
		do   func()
		due  bool
	}{
		{"a few", func() { come(trimFrom - 1) }, false},
		{"many", func() { come(1) }, true},
		{"more within the second", func() { wait(trimAfter / 2); come(1); wait(trimAfter / 2) }, true},
		{"a second of silence", func() { wait(trimAfter / 2) }, false},
		{"a few more", func() { come(trimFrom - 1) }, false},
		{"many are gone", func() { leave(2*trimFrom - 10) }, false},
		{"and many come again", func() { come(trimFrom + 1) }, true},
	} {
		step.do()
		if due := !e.trimAt.IsZero(); due != step.due {
			t.Errorf("%s: due %v, want %v (%d messages, %d at the last time)", step.name, due, step.due, e.messages.len(), e.trimmed)
		}
	}
}
