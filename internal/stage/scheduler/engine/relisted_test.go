package engine

import (
	"strings"
	"testing"

	"zmailer/internal/stage/scheduler/store/storetest"
)

// M21: a message was listed where it stood before the scheduler itself moved it to its
// hash directory: that is nothing to tell, and no second message.
func TestNameBeforeARehashIsForgotten(t *testing.T) {
	b, dir := diskBox(t)
	name := b.Queue("a@b", storetest.Rcpt{Line: "smtp h x@h"})
	e := newEngine(Config{Conf: b.spool.Conf, Dir: dir, Log: b.spool.Log}, b.PO)
	e.pool = newPool(e.intake.load)
	defer e.pool.close()
	e.clock.tick()
	next := func() {
		<-e.box.wake
		for _, fn := range e.box.take(nil) {
			fn()
		}
	}
	e.intake.want(name)
	for e.messages.len() == 0 {
		next()
	}
	e.intake.want("A/B/" + name)
	for len(e.changes.busy) > 0 {
		next()
	}
	if got := b.Log.String(); strings.Contains(got, "specification-refused") || len(e.intake.refused) > 0 || e.messages.len() != 1 {
		t.Errorf("%d messages, refused: %v\n%s", e.messages.len(), e.intake.refused, got)
	}
}
