package engine

import (
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"zmailer/internal/run/assert"
	"zmailer/internal/stage/scheduler/conf"
	"zmailer/internal/stage/scheduler/thread"
)

// setClock is a clock that a test may set, beside the system's that runs on.
type setClock struct{ ahead atomic.Int64 }

func (c *setClock) now() time.Time { return time.Now().Add(time.Duration(c.ahead.Load())) }

func (c *setClock) set(by time.Duration) { c.ahead.Add(int64(by)) }

// waiting has every clause wait a quarter of a second, or half.
func waiting(s *conf.Settings) {
	s.Interval, s.Expiry = 250*time.Millisecond, time.Hour
	s.Retries = []int{1, 2}
}

// A5 M27: the clock is set by a day while messages wait: they are tried when they would
// have been, a host in trouble is, none expires, agents go on.
func TestClockSetByADayWhileMessagesWait(t *testing.T) {
	t.Parallel()
	for _, by := range []time.Duration{24 * time.Hour, -24 * time.Hour} {
		t.Run(by.String(), func(t *testing.T) {
			t.Parallel()
			clock := &setClock{}
			r := newRig(t, scriptConf("TEST_SLOTS=20", ""), 0, waiting)
			r.config.tuning.clocks.now = clock.now
			var want []string
			for i := range 4 {
				want = append(want, fmt.Sprintf("defer3.%d@h", i), fmt.Sprintf("retryat1.%d@h", i))
				r.queue(fmt.Sprintf("smtp h%d %s", i, want[2*i]), fmt.Sprintf("smtp g%d %s", i, want[2*i+1]))
			}
			r.start()
			r.wait(8, "msg=deferred", "attempt=1")
			set := time.Now()
			clock.set(by)
			r.wait(1, "msg=clock-set", "by=")
			// The next attempt comes within the longest interval, whatever the machine's load
			// adds to it.
			r.wait(4, "msg=deferred", "attempt=2")
			r.wait(4, "msg=finished")
			if took := time.Since(set); took > patience/2 {
				t.Errorf("all was delivered %v after the clock was set, want about a second", took)
			}
			r.deliveredOnce(want...)
			r.never("msg=expired")
			r.exactly(1, "msg=clock-set")
		})
	}
}

// A5: the clock is set back while no scheduler runs: what the last one decided to wait
// for is not waited for a day longer.
func TestClockSetBackWhileNoSchedulerRuns(t *testing.T) {
	t.Parallel()
	clock := &setClock{}
	r := newRig(t, scriptConf("TEST_SLOTS=20", ""), 0, waiting)
	r.config.tuning.clocks.now = clock.now
	for i := range 3 {
		r.queue(fmt.Sprintf("smtp h%d defer2.%d@h", i, i), fmt.Sprintf("smtp g%d deferall1.%d@h", i, i))
	}
	r.start()
	r.wait(6, "msg=deferred")
	r.stop()
	clock.set(-24 * time.Hour)
	r.start()
	r.wait(3, "msg=finished")
	r.never("msg=expired")
}

// A clock that is set by an hour makes no thread still.
func TestClockThatIsSetMovesTheTimeOfProgress(t *testing.T) {
	b, dir := diskBox(t)
	e := newStepped(t, b, dir, nil)
	now := time.Unix(1_800_000_000, 0)
	e.monitor.still = map[*thread.Thread]stillness{nil: {since: now}}
	e.clock.shift(time.Hour)
	if got, want := e.monitor.still[nil].since, now.Add(time.Hour); !got.Equal(want) {
		t.Errorf("the last progress: %v, want %v", got, want)
	}
}

// A reminder of a message that is gone from the disk, while an agent has it still, does
// nothing to its name, which may be another's by then.
func TestReminderOfWhatIsGone(t *testing.T) {
	b, dir := diskBox(t)
	e := newStepped(t, b, dir, nil)
	e.ends.remind(&thread.Message{Number: 1})
	if len(e.changes.busy) != 0 {
		t.Error("its file is looked at")
	}
}

// M27: CLOCK_BOOTTIME is read once a second, and at once when the machine may have
// slept, which only its time of day shows.
func TestBootClockIsAskedOnceASecondAndAfterSleep(t *testing.T) {
	boot, asked := 7*time.Hour, 0
	known := true
	b := bootClock{ask: func() (time.Duration, bool) { asked++; return boot, known }}
	day, even := 30*time.Hour, time.Duration(0)
	pass := func(awake, asleep, set time.Duration) {
		day, even, boot = day+awake+asleep+set, even+awake, boot+awake+asleep
	}
	for _, step := range []struct {
		name               string
		awake, asleep, set time.Duration
		silent             bool
		asked              int
	}{
		{name: "the first time", asked: 1},
		{name: "half a second later", awake: time.Second / 2},
		{name: "a second later", awake: time.Second / 2, asked: 1},
		{name: "after a sleep", awake: time.Millisecond, asleep: time.Hour, asked: 1},
		{name: "after the clock was set", awake: time.Millisecond, set: -time.Hour, asked: 1},
		{name: "and then", awake: time.Millisecond},
		{name: "without an answer", awake: 2 * time.Second, silent: true, asked: 1},
	} {
		pass(step.awake, step.asleep, step.set)
		known = !step.silent
		before := asked
		assert.Equal(t, b.read(day, even), boot, step.name)
		assert.Equal(t, asked-before, step.asked, "%s: questions", step.name)
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

// A message whose file has a time that is still to come gets old all the same, whatever
// starts of the scheduler come between: its age is counted from the change of its inode.
func TestDel9FutureTimeExpires(t *testing.T) {
	t.Parallel()
	for name, touch := range map[string]bool{"before the scheduler sees it": false, "while it waits": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			clock := &leaps{}
			r := newRig(t, scriptConf("TEST_SLOTS=1", "expiry=4h interval=10m retries=1 idlemax=1s"), 0, nil)
			r.config.tuning.clocks = clock.clocks()
			file := r.queue("smtp h defer999@h")
			future := time.Now().Add(10 * 365 * 24 * time.Hour)
			set := func() {
				assert.Must(t, os.Chtimes(filepath.Join(r.dir, "queue", file), future, future))
			}
			if !touch {
				set()
			}
			r.start()
			r.wait(1, "msg=deferred")
			if touch {
				set()
			}
			clock.by.Add(int64(3 * time.Hour))
			if touch {
				r.queue("smtp h2 ok@h") // it wakes the scheduler
				r.wait(1, "msg=touched")
			} else {
				r.stop()
				r.start()
			}
			r.wait(2, "msg=deferred")
			r.never("msg=expired")
			clock.by.Add(int64(2 * time.Hour))
			r.queue("smtp h3 ok@h")
			r.wait(1, "msg=expired", "rcpt=defer999@h")
			r.wait(1, "msg=report", "kind=failed")
		})
	}
}
