package engine

import (
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"zmailer/internal/stage/scheduler/store/storetest"
)

// An agent with several slots has two jobs of one message and cannot use the file for the
// second of them. That one is given out again, though the other one's delivery goes on, and
// the other one's status line counts when it comes.
func TestDel3ResyncIsAboutOneOfSeveralJobs(t *testing.T) {
	t.Parallel()
	for name, vars := range map[string]string{
		"the agent names the host": "TEST_SLOTS=20 TEST_SAYHOST=1",
		"it names none":            "TEST_SLOTS=20",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, scriptConf(vars, "maxthr=1"), 0, quick)
			r.Queue("a@b", storetest.Rcpt{Line: "smtp h1 gate@h1"}, storetest.Rcpt{Line: "smtp h2 resync@h2"})
			r.start()
			gate := r.atGate()
			r.wait(1, "msg=resync", "host=h2")
			r.wait(1, "msg=delivered", "rcpt=resync@h2")
			r.Queue("a@b", storetest.Rcpt{Line: "smtp h2 ok@h2"})
			r.wait(1, "msg=delivered", "rcpt=ok@h2")
			gate()
			r.wait(1, "msg=delivered", "rcpt=gate@h1", "through the gate")
			r.wait(2, "msg=finished")
			r.deliveredOnce("gate@h1", "resync@h2", "ok@h2")
			for _, rcpt := range []string{"gate@h1", "resync@h2", "ok@h2"} {
				if n, _ := r.events.count("msg=delivered", "rcpt="+rcpt); n != 1 {
					t.Errorf("%s: %d lines tell that it was delivered, want 1", rcpt, n)
				}
			}
		})
	}
}

// What an agent leaves to the scheduler is written down, too, when the job was taken back
// before its answer: the failure is reported once, and nothing is tried again.
func TestDel3LateFailureIsReported(t *testing.T) {
	t.Parallel()
	r := newRig(t, scriptConf("TEST_SLOTS=20", "maxthr=1"), 0, quick)
	r.Queue("a@b", storetest.Rcpt{Line: "smtp h1 gateerror@h1"}, storetest.Rcpt{Line: "smtp h2 resync@h2"})
	r.start()
	gate := r.atGate()
	r.wait(1, "msg=delivered", "rcpt=resync@h2")
	gate()
	r.wait(1, "msg=failed", "rcpt=gateerror@h1", "status=5.7.1")
	r.wait(1, "msg=finished")
	r.deliveredOnce("resync@h2")
	if n := len(r.Reports()); n != 1 {
		t.Errorf("%d reports, want 1", n)
	}
	if n, _ := r.events.count("msg=failed"); n != 1 {
		t.Errorf("%d lines tell of a failure, want 1", n)
	}
}

// leaps is a clock that a test puts forward as a whole: that much time has passed.
type leaps struct {
	by    atomic.Int64
	begin time.Time
}

func (l *leaps) clocks() clocks {
	l.begin = time.Now()
	return clocks{
		now:    func() time.Time { return time.Now().Add(time.Duration(l.by.Load())) },
		steady: func() time.Duration { return time.Since(l.begin) + time.Duration(l.by.Load()) },
	}
}

// A job without an answer is taken back after answermax, and the agent that keeps it is
// ended: its other deliveries finish first. What it had locked is in doubt until then.
func TestDel3JobWithoutAnswerIsTakenBack(t *testing.T) {
	t.Parallel()
	for name, slots := range map[string]string{"several slots": "TEST_SLOTS=20", "one slot": "TEST_SLOTS=1"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			clock := &leaps{}
			r := newRig(t, scriptConf(slots, "maxthr=1 answermax=1h idlemax=10h"), 0, nil)
			r.config.clocks = clock.clocks()
			r.config.StopTimeout = 100 * time.Millisecond
			r.Queue("a@b", storetest.Rcpt{Line: "smtp h1 ok@h1"}, storetest.Rcpt{Line: "smtp h1 hangs@h1"})
			r.start()
			r.wait(1, "msg=delivered", "rcpt=ok@h1") // the agent has come to the other one
			want := []string{"ok@h1", "hangs@h1", "ok@h3"}
			var gate func()
			if name == "several slots" {
				clock.by.Add(int64(40 * time.Minute))
				r.Queue("a@b", storetest.Rcpt{Line: "smtp h2 gate@h2"})
				gate = r.atGate()
				want = append(want, "gate@h2")
			}
			clock.by.Add(int64(40 * time.Minute))
			if gate == nil {
				clock.by.Add(int64(40 * time.Minute))
			}
			r.Queue("a@b", storetest.Rcpt{Line: "smtp h3 ok@h3"})
			r.wait(1, "msg=unanswered", "host=h1", "after=")
			r.wait(1, "msg=delivered", "rcpt=ok@h3")
			if gate != nil {
				if n, _ := r.events.count("msg=agent-killed"); n != 0 {
					t.Error("the agent was killed while it had another delivery")
				}
				gate()
				r.wait(1, "msg=delivered", "rcpt=gate@h2", "through the gate")
			}
			r.wait(1, "msg=agent-killed")
			r.wait(1, "msg=recovered", "rcpt=hangs@h1", "action=unlocked")
			r.wait(len(want)-1, "msg=finished")
			r.deliveredOnce(want...)
		})
	}
}

// An agent may have any number of slots, and its #hungry may be read in parts: deliveries
// under way are never taken for unanswered ones.
func TestDel7ManySlots(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		vars         string
		slots, first int
	}{
		"in two parts":        {"TEST_SLOTS=300 TEST_CLAIMS=1 TEST_FIRST=256", 300, 256},
		"more, in two parts":  {"TEST_SLOTS=1500 TEST_CLAIMS=1 TEST_FIRST=1100", 1500, 1100},
		"it does not say how": {"TEST_SLOTS=300", 300, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, scriptConf(c.vars, "maxthr=0 maxta=1 start=0 maxunproven=0"), 0, nil)
			waits := 44
			if c.first > 0 {
				waits = c.slots - c.first
			}
			var want []string
			r.plant(c.slots, func(i int) string {
				word := "ok."
				if i < waits {
					word = "gate."
				}
				want = append(want, word+strconv.Itoa(i)+"@h")
				return want[i]
			}, func(i int) string { return "h" + strconv.Itoa(i) })
			r.config.ReadFirst = true
			r.start()
			gate := r.atGate()
			r.wait(c.slots-waits, "msg=delivered")
			gate()
			r.wait(c.slots, "msg=finished")
			r.deliveredOnce(want...)
			if n, _ := r.events.count("msg=unanswered"); n != 0 {
				t.Errorf("%d deliveries under way count as unanswered", n)
			}
		})
	}
}
