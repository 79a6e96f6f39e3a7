package engine

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"zmailer/internal/run/assert"
	"zmailer/internal/run/logtest"
	"zmailer/internal/stage/scheduler/conf"
	"zmailer/internal/stage/scheduler/store/storetest"
	"zmailer/internal/wire/taproto"
)

// process starts a scheduler in a process of its own, to be killed.
func (r *rig) process(conf string) *exec.Cmd {
	r.T.Helper()
	assert.Must(r.T, os.WriteFile(filepath.Join(r.dir, "scheduler.conf"), []byte(conf), 0o644))
	self, err := os.Executable()
	assert.Must(r.T, err)
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), "TEST_SCHEDULER="+r.dir, raced)
	// Its log; its agents have the same standard error and may outlive it.
	cmd.Stderr = &lineWriter{to: r.child}
	cmd.WaitDelay = 10 * time.Millisecond
	assert.Must(r.T, cmd.Start())
	return cmd
}

func (r *rig) kill(cmd *exec.Cmd) {
	r.T.Helper()
	assert.Must(r.T, cmd.Process.Kill())
	// Killed: Wait says so by an error.
	if err := cmd.Wait(); err == nil {
		r.T.Fatal("the scheduler ended by itself")
	}
}

// killAgents kills every scripted agent of the postoffice and waits until their
// owner numbers are free.
func (r *rig) killAgents() {
	r.T.Helper()
	for _, name := range r.List("owners") {
		text, err := os.ReadFile(filepath.Join(r.dir, "owners", name))
		if errors.Is(err, os.ErrNotExist) {
			continue // an agent without deliveries, which ended when its scheduler did
		} else if err != nil {
			r.T.Fatal(err)
		}
		pid, ok := strings.CutPrefix(strings.TrimSpace(string(text)), "test-agent pid ")
		n, err := strconv.Atoi(pid)
		if !ok || err != nil {
			continue
		}
		if err := syscall.Kill(n, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
			r.T.Fatal(err)
		}
		f, err := os.Open(filepath.Join(r.dir, "owners", name))
		if err != nil {
			continue
		}
		// The lock is free when the process is gone.
		assert.Must(r.T, syscall.Flock(int(f.Fd()), syscall.LOCK_EX))
		_ = f.Close()
	}
}

// M18: scheduler and agent are killed in mid-delivery, in every order.
func TestKilledInMidDelivery(t *testing.T) {
	t.Parallel()
	text := scriptConf("TEST_SLOTS=2", "")
	tests := map[string]func(r *rig, kill, gate func()){
		"the scheduler; its agent delivers after the next start": func(r *rig, kill, gate func()) {
			kill()
			r.start()
			r.wait(2, "msg=queued")
			r.wait(1, "msg=finished") // the other message
			gate()
		},
		"the scheduler; its agent delivers before the next start": func(r *rig, kill, gate func()) {
			kill()
			gate()
			r.start()
		},
		"the scheduler, then the agent": func(r *rig, kill, gate func()) {
			kill()
			r.killAgents()
			gate()
			r.start()
			r.atGate()()
		},
		"the agent, then the scheduler": func(r *rig, kill, gate func()) {
			r.killAgents()
			kill()
			gate()
			r.start()
			r.atGate()()
		},
		"the scheduler, and the agent after the next start": func(r *rig, kill, gate func()) {
			kill()
			r.start()
			r.wait(2, "msg=queued")
			r.killAgents()
			gate()
			r.atGate()()
		},
	}
	for name, act := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, text, 0, quick)
			// What becomes of a delivery of the one before is seen without another look at transport/.
			r.config.tuning.locked = 20 * time.Millisecond
			r.queue("smtp h gate@h", "smtp g ok@g")
			cmd := r.process(text)
			gate := r.atGate()
			act(r, func() {
				r.kill(cmd)
				r.queue("local joe ok.second@h") // for the next scheduler
			}, gate)
			r.drained()
			r.stop()
			r.deliveredOnce("gate@h", "ok@g", "ok.second@h")
			r.reports(0)
		})
	}
}

// drained waits until transport/ is empty.
func (r *rig) drained() {
	r.T.Helper()
	logtest.Eventually(r.T, "transport/ is empty", func() bool { return len(r.List("transport")) == 0 })
}

// A5: killed in the middle of a wait, the next scheduler goes on with it: attempt
// and time stand in the file before the wait begins.
func TestKilledInMidWait(t *testing.T) {
	t.Parallel()
	text := scriptConf("TEST_SLOTS=1", "")
	r := newRig(t, text, 0, nil)
	name := r.queue("smtp h defer1@h", "smtp down host1@h", "local gate gate@h")
	cmd := r.process(text)
	// Agents are fed in any order; the gate keeps one from ending the message.
	gate := r.atGate()
	assert.Must(t, r.child.wait(2, "msg=recorded"))
	r.kill(cmd)
	r.killAgents()
	gate()
	before := r.Parse(name)
	r.start()
	r.wait(1, "msg=queued")
	r.atGate()()
	r.wait(1, "msg=delivered", "gate@h")
	after := r.Parse(name)
	assert.Equal(t, len(r.notes("def")), 2, "attempts, none of them before its time")
	for i, e := range before.History[:2] {
		if got := after.History[i]; got.Get("next") != e.Get("next") || e.Get("attempt") != "1" {
			t.Errorf("event %d: %+v became %+v", i, e, got)
		}
	}
}

// M27, M35: what is too old is expired, reported once, and gone, also where no agent serves it.
func TestExpiredMessageIsReportedOnce(t *testing.T) {
	t.Parallel()
	text := strings.Replace(scriptConf("TEST_SLOTS=2", ""), "expiry=3d", "expiry=1s", 1)
	r := newRig(t, text, 0, quick)
	r.queue("smtp h defer999@h", "smtp down host999@h", "smtp h ok@h")
	r.queue("uucp far x@h", "hold w y@h")
	r.start()
	r.wait(2, "msg=expired", "status=4.4.7")
	r.wait(2, "msg=expired", "status=5.4.7")
	r.drained()
	r.stop()
	r.deliveredOnce("ok@h")
	r.reports(2)
	reports := strings.Join(r.Reports(), "")
	assert.Equal(t, len(storetest.Fields(reports, "Final-Recipient")), 4, "recipients in the reports")
	for _, answer := range []string{"450 4.2.1 later", "connection refused"} {
		assert.Equal(t, strings.Contains(reports, answer), true, "reports have %s", answer)
	}
}

// M36 over real processes: the report does not wait for the last recipient.
func TestReportDoesNotWaitForTheLastRecipient(t *testing.T) {
	t.Parallel()
	text := "PARAM global-report-interval = 1\n" + scriptConf("TEST_SLOTS=3", "")
	r := newRig(t, text, 0, func(s *conf.Settings) { s.Interval = time.Hour })
	name := r.queue("smtp h fail@h", "smtp h defer1@h")
	r.start()
	r.wait(1, "msg=report", "kind=failed", "rcpt=a@b")
	if s := r.Parse(name); storetest.Tags(s) != "- " || !s.Diagnostics[0].Reported {
		t.Errorf("tags %q, diagnostics %+v", storetest.Tags(s), s.Diagnostics)
	}
	r.reports(1)
}

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
			r.queue("smtp h1 gate@h1", "smtp h2 resync@h2")
			r.start()
			gate := r.atGate()
			r.wait(1, "msg=resync", "host=h2")
			r.wait(1, "msg=delivered", "rcpt=resync@h2")
			r.queue("smtp h2 ok@h2")
			r.wait(1, "msg=delivered", "rcpt=ok@h2")
			gate()
			r.wait(1, "msg=delivered", "rcpt=gate@h1", "through the gate")
			r.wait(2, "msg=finished")
			r.deliveredOnce("gate@h1", "resync@h2", "ok@h2")
			for _, rcpt := range []string{"gate@h1", "resync@h2", "ok@h2"} {
				r.exactly(1, "msg=delivered", "rcpt="+rcpt)
			}
		})
	}
}

// What an agent leaves to the scheduler is written down, too, when the job was taken back
// before its answer: the failure is reported once, and nothing is tried again.
func TestDel3LateFailureIsReported(t *testing.T) {
	t.Parallel()
	r := newRig(t, scriptConf("TEST_SLOTS=20", "maxthr=1"), 0, quick)
	r.queue("smtp h1 gateerror@h1", "smtp h2 resync@h2")
	r.start()
	gate := r.atGate()
	r.wait(1, "msg=delivered", "rcpt=resync@h2")
	gate()
	r.wait(1, "msg=failed", "rcpt=gateerror@h1", "status=5.7.1")
	r.wait(1, "msg=finished")
	r.deliveredOnce("resync@h2")
	r.reports(1)
	r.exactly(1, "msg=failed")
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
			r.config.tuning.clocks = clock.clocks()
			r.config.StopTimeout = 100 * time.Millisecond
			r.queue("smtp h1 ok@h1", "smtp h1 hangs@h1")
			r.start()
			r.wait(1, "msg=delivered", "rcpt=ok@h1") // the agent has come to the other one
			want := []string{"ok@h1", "hangs@h1", "ok@h3"}
			var gate func()
			if name == "several slots" {
				clock.by.Add(int64(40 * time.Minute))
				r.queue("smtp h2 gate@h2")
				gate = r.atGate()
				want = append(want, "gate@h2")
			}
			clock.by.Add(int64(40 * time.Minute))
			if gate == nil {
				clock.by.Add(int64(40 * time.Minute))
			}
			r.queue("smtp h3 ok@h3")
			r.wait(1, "msg=unanswered", "host=h1", "after=")
			r.wait(1, "msg=delivered", "rcpt=ok@h3")
			if gate != nil {
				r.never("msg=agent-killed")
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
			r.config.Start.ReadFirst = true
			r.start()
			gate := r.atGate()
			r.wait(c.slots-waits, "msg=delivered")
			gate()
			r.wait(c.slots, "msg=finished")
			r.deliveredOnce(want...)
			r.never("msg=unanswered")
		})
	}
}

// unruly is what the first agent of a test does with its first delivery before it turns
// to it, if it ever does.
func (s *script) unruly(how string, j taproto.Job) {
	out := s.out.(*os.File)
	switch strings.ReplaceAll(how, "_", " ") {
	case "endless line":
		junk := strings.Repeat("x", 64<<10)
		for {
			if _, err := io.WriteString(out, junk); err != nil {
				os.Exit(0)
			}
		}
	case "flood":
		junk := strings.Repeat("# no end of words\n", 4<<10)
		for n := 0; n < 100<<20; n += len(junk) {
			if _, err := io.WriteString(out, junk); err != nil {
				os.Exit(0)
			}
		}
	case "hungry flood":
		junk := strings.Repeat("#hungry\n", 8<<10)
		for n := 0; n < 100<<20; n += len(junk) {
			if _, err := io.WriteString(out, junk); err != nil {
				os.Exit(0)
			}
		}
	case "closed output":
		_ = out.Close()
		hang()
	case "closed output after the tag":
		s.deliver(j)
		_ = out.Close()
		hang()
	case "child":
		cmd := exec.Command("/proc/self/exe")
		cmd.Env, cmd.Stdout = []string{"TEST_AGENT=child", raced}, out
		if err := cmd.Start(); err != nil {
			panic(err)
		}
		s.note("child %d", cmd.Process.Pid)
		s.die()
	case "half an answer":
		s.say("12345/67")
		s.die()
	case "unknown delivery":
		// Every queued message's recipients, any client that has them, and none at all.
		names, err := os.ReadDir(".")
		if err != nil {
			panic(err)
		}
		for _, e := range names {
			if n, _, _ := strings.Cut(e.Name(), "-"); e.Name() != filepath.Base(j.Name) {
				for off := range 400 {
					s.say(fmt.Sprintf("%s/%d\t\tok3 taken\n", n, off))
				}
			}
		}
		s.say("0/0\t\tok3\n18446744073709551615/999999999999999999\t\terror gone\n1/-1\t\tok3\n")
	}
}

// S7: an agent of any manners loses nothing and delivers nothing twice; it is ended, and
// another one takes over. Real processes.
func TestUnrulyAgentLosesNothing(t *testing.T) {
	tests := map[string]string{ // what is logged of it
		"endless line":                "msg=agent-killed",
		"flood":                       "msg=agent-killed",
		"hungry flood":                "msg=agent-killed",
		"deaf":                        "msg=agent-deaf",
		"closed output":               "msg=agent-deaf",
		"closed output after the tag": "msg=agent-deaf",
		"child":                       "msg=agent-ended",
		"half an answer":              "msg=agent-ended",
		"unknown delivery":            "reason=\"it has no such delivery; ignored\"",
	}
	for how, logged := range tests {
		for _, slots := range []int{1, 5} {
			t.Run(fmt.Sprintf("%s, %d slots", how, slots), func(t *testing.T) {
				t.Parallel()
				r := newRig(t, scriptConf(fmt.Sprintf("TEST_SLOTS=%d TEST_UNRULY=%s", slots, strings.ReplaceAll(how, " ", "_")), "maxthr=1"), 0, quick)
				r.config.Look, r.config.tuning.deaf, r.config.StopTimeout = 100*time.Millisecond, 200*time.Millisecond, 300*time.Millisecond
				t.Cleanup(func() { killChildren(r) })
				var want []string
				for i := range 5 {
					want = append(want, fmt.Sprintf("ok.%d@h", i))
					r.queue("smtp h " + want[i])
				}
				r.start()
				r.wait(5, "msg=finished")
				r.wait(1, logged)
				if n, _ := r.events.count("msg=agent-said"); n > 2*20 {
					t.Errorf("%d lines of an agent's chatter in the log", n)
				}
				r.config.StopTimeout = 20 * time.Second
				r.stop()
				r.deliveredOnce(want...)
				r.reports(0)
			})
		}
	}
}

// killChildren ends the processes that agents have left.
func killChildren(r *rig) {
	for _, line := range r.notes("child ") {
		if pid, err := strconv.Atoi(strings.TrimPrefix(line, "child ")); err == nil {
			// An error means that it has ended.
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
}

// S7: what an agent babbles is not kept in memory.
func TestFloodOfAnAgentTakesNoMemory(t *testing.T) {
	r := newRig(t, scriptConf("TEST_SLOTS=1 TEST_UNRULY=flood", ""), 0, quick)
	r.queue("smtp h ok@h")
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	r.start()
	r.wait(1, "msg=finished")
	runtime.ReadMemStats(&after)
	if got := after.HeapSys - before.HeapSys; after.HeapSys > before.HeapSys && got > 64<<20 {
		t.Errorf("the heap grew by %d bytes", got)
	}
	r.stop()
}

// hang ends with the process. Not select{}: the runtime may find that nothing can happen any
// more.
func hang() {
	for range time.Tick(time.Hour) {
	}
}
