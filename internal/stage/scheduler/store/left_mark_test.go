package store

import (
	"os"
	"testing"

	"zmailer/internal/run/assert"
	"zmailer/internal/stage/scheduler/store/storetest"
	"zmailer/internal/stage/scheduler/thread"
	"zmailer/internal/workspec"
)

// An agent that could not mark what it has delivered leaves its lock and says so: the
// scheduler sets the tag, over the lock of an owner that lives.
func TestDeliveryThatItsAgentCouldNotMarkIsMarked(t *testing.T) {
	b, _ := diskBox(t)
	name := b.Queue("a@b", storetest.Rcpt{Line: "smtp h one@h"})
	b.Lock(name, 0, os.Getpid())
	off := storetest.OffsetOf(b.Parse(name), 0)
	for range 2 { // again, as after a change that failed in the middle
		assert.Must(t, b.record(name, []Outcome{{Offset: off, Result: thread.Delivered, Text: "250 2.0.0 Ok"}}))
		if got := b.Parse(name).Groups[0].Recipients[0]; got.Tag != workspec.TagOK || got.Owner != 0 {
			t.Errorf("got tag %q of owner %d, want it delivered", got.Tag, got.Owner)
		}
	}
}
