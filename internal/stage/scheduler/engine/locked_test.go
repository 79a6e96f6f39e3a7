package engine

import (
	"slices"
	"testing"
	"time"

	"zmailer/internal/stage/scheduler/store/storetest"
	"zmailer/internal/stage/scheduler/thread"
)

// M18: the agent of a scheduler that was killed ends its delivery under the next one,
// which notices that without waiting for its next look at transport/; so it does when
// that agent is killed.
func TestEndOfAnotherSchedulersDeliveryIsSeenSoon(t *testing.T) {
	t.Parallel()
	text := scriptConf("TEST_SLOTS=2", "")
	tests := map[string]func(r *rig, gate func()){
		"it delivers":  func(_ *rig, gate func()) { gate() },
		"it is killed": func(r *rig, gate func()) { r.killAgents(); gate(); r.atGate()() },
	}
	for name, end := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, text, 0, quick)
			r.config.Look, r.config.locked = time.Hour, 20*time.Millisecond
			r.Queue("a@b", storetest.Rcpt{Line: "smtp h gate@h"})
			cmd := r.process(text)
			gate := r.atGate()
			r.kill(cmd)
			r.start()
			r.wait(1, "msg=queued")
			end(r, gate)
			r.drained()
			if err := r.stop(); err != nil {
				t.Error(err)
			}
			r.deliveredOnce("gate@h")
		})
	}
}

// The looks back off until those at transport/ come as often, and begin anew with the
// next message.
func TestLooksAtLockedRecipientsBackOff(t *testing.T) {
	b, _ := diskBox(t)
	start := time.Now()
	e := newEngine(Config{Conf: b.spool.Conf, Look: 15 * time.Second, Log: b.spool.Log}, b.PO)
	m := &thread.Message{Number: 1}
	e.changes.busy[m] = &ops{} // so that nothing is read
	looks := func() (list []time.Duration) {
		for range 10 {
			if e.placement.lockedAt.IsZero() {
				break
			}
			e.now = e.placement.lockedAt
			list = append(list, e.now.Sub(start))
			e.placement.lookAtLocked()
		}
		return list
	}
	want := []time.Duration{time.Second, 3 * time.Second, 7 * time.Second, 15 * time.Second}
	for range 2 {
		e.now = start
		e.placement.hold(m)
		if got := looks(); !slices.Equal(got, want) {
			t.Errorf("looks after %v, want %v", got, want)
		}
		delete(e.placement.locked, m)
		e.placement.reloadLocked()
	}
}
