package engine

import (
	"fmt"
	"testing"

	"zmailer/internal/stage/scheduler/store/storetest"
)

// An agent that takes its time to start is waited for: what it will take starts no
// further ones.
func TestSlowStartBringsNoFurtherAgents(t *testing.T) {
	t.Parallel()
	r := newRig(t, scriptConf("TEST_SLOTS=20 TEST_START=gate", ""), 0, quick)
	queue := func(n int) {
		for i := range 5 {
			r.Queue("a@b", storetest.Rcpt{Line: fmt.Sprintf("smtp h%d ok.%d.%d@h", i, n, i)})
		}
	}
	queue(0)
	r.start()
	gate := r.atGate()
	for n := 1; n < 4; n++ {
		queue(n)
		r.wait(5*(n+1), "msg=queued")
	}
	if n, _ := r.events.count("msg=agent-started"); n != 1 {
		t.Errorf("%d agents were started, want 1", n)
	}
	gate()
	r.wait(20, "msg=finished")
}
