package engine

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"zmailer/internal/run/assert"
	"zmailer/internal/run/lease"
	"zmailer/internal/run/lease/leasetest"
	"zmailer/internal/run/logtest"
	"zmailer/internal/workspec"
)

// endsWithoutLease waits until the scheduler has ended because the lease was lost.
func (r *rig) endsWithoutLease() {
	r.T.Helper()
	select {
	case err := <-r.ended:
		r.ended = nil
		if !errors.Is(err, lease.ErrNoLease) {
			r.T.Errorf("got %v, want ErrNoLease", err)
		}
	case <-time.After(patience):
		r.T.Fatalf("the scheduler does not end:\n%s", r.events)
	}
}

// C4: before there is a lease the scheduler does not touch the postoffice. A deferral that comes when the
// lease has ended is not recorded: it would hide from the next machine that the delivery is in doubt.
// Under the next lease the recipient is delivered.
func TestC4SchedulerRecordsNothingPastTheDeadline(t *testing.T) {
	t.Parallel()
	node := leasetest.New(t)
	r := newRig(t, scriptConf("", ""), 0, quick)
	node.Lose()
	r.config.Lease, r.config.StopTimeout = node.Page(), time.Second
	name := r.queue("smtp h gatelater@h")
	r.start()
	r.wait(1, "msg=lease-awaited")
	r.never("msg=started")
	node.Hold()
	open := r.atGate()
	node.Lose()
	r.wait(1, "msg=stopping")
	open()
	r.endsWithoutLease()
	history := assert.Get(workspec.Parse(assert.Get(os.ReadFile(filepath.Join(r.dir, "transport", name)))(t)))(t).History
	if slices.ContainsFunc(history, func(e workspec.Event) bool { return e.Event == workspec.EventDeferred }) {
		t.Errorf("a deferral was recorded past the deadline: %+v", history)
	}
	if got := r.notes("delivered"); len(got) != 0 {
		t.Errorf("delivered without a lease: %q", got)
	}
	node.Hold()
	r.config.Lease = node.Page()
	r.start()
	r.wait(1, "msg=finished", name)
	r.deliveredOnce("gatelater@h")
}

// C4: while too little is left of a lease no job is given to an agent; when it is renewed, it is.
func TestC4NoJobShortBeforeTheDeadline(t *testing.T) {
	t.Parallel()
	node := leasetest.New(t)
	var short atomic.Bool
	var looks atomic.Int64
	r := newRig(t, scriptConf("", ""), 0, quick)
	r.config.Lease = node.With(func() time.Duration {
		if !short.Load() {
			return lease.Now()
		}
		looks.Add(1)
		return node.Deadline() - lease.Step
	})
	r.start()
	r.wait(1, "msg=started")
	short.Store(true)
	name := r.queue("smtp h ok@h")
	// Looks that have nothing to do with the message come five times a second; 30 are six seconds, or
	// the engine has looked often.
	logtest.Eventually(t, "looks at the deadline", func() bool { return looks.Load() > 30 })
	if got := r.notes("delivered"); len(got) != 0 {
		t.Errorf("delivered shortly before the deadline: %q", got)
	}
	short.Store(false)
	r.wait(1, "msg=finished", name)
	r.deliveredOnce("ok@h")
}
