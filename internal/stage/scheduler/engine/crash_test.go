package engine

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"zmailer/internal/stage/scheduler/conf"
	"zmailer/internal/stage/scheduler/store/storetest"
)

// process starts a scheduler in a process of its own, to be killed.
func (r *rig) process(conf string) *exec.Cmd {
	r.T.Helper()
	if err := os.WriteFile(filepath.Join(r.dir, "scheduler.conf"), []byte(conf), 0o644); err != nil {
		r.T.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		r.T.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), "TEST_SCHEDULER="+r.dir, raced)
	// Its log; its agents have the same standard error and may outlive it.
	cmd.Stderr = &lineWriter{to: r.child}
	cmd.WaitDelay = 10 * time.Millisecond
	if err := cmd.Start(); err != nil {
		r.T.Fatal(err)
	}
	return cmd
}

func (r *rig) kill(cmd *exec.Cmd) {
	r.T.Helper()
	if err := cmd.Process.Kill(); err != nil {
		r.T.Fatal(err)
	}
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
		if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
			r.T.Fatal(err)
		}
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
			r.config.Look = 50 * time.Millisecond
			r.Queue("a@b", storetest.Rcpt{Line: "smtp h gate@h"}, storetest.Rcpt{Line: "smtp g ok@g"})
			cmd := r.process(text)
			gate := r.atGate()
			act(r, func() {
				r.kill(cmd)
				r.Queue("a@b", storetest.Rcpt{Line: "local joe ok.second@h"}) // for the next scheduler
			}, gate)
			r.drained()
			if err := r.stop(); err != nil {
				t.Error(err)
			}
			r.deliveredOnce("gate@h", "ok@g", "ok.second@h")
			if n := len(r.Reports()); n != 0 {
				t.Errorf("%d reports", n)
			}
		})
	}
}

// drained waits until transport/ is empty; every change of that is logged.
func (r *rig) drained() {
	r.T.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	for {
		_, more := r.events.count()
		if len(r.List("transport")) == 0 {
			return
		}
		select {
		case <-more:
		case <-deadline.C:
			r.T.Fatalf("transport/ still holds %v", r.List("transport"))
		}
	}
}

// A5: killed in the middle of a wait, the next scheduler goes on with it: attempt
// and time stand in the file before the wait begins.
func TestKilledInMidWait(t *testing.T) {
	t.Parallel()
	text := scriptConf("TEST_SLOTS=1", "")
	r := newRig(t, text, 0, nil)
	name := r.Queue("a@b", storetest.Rcpt{Line: "smtp h defer1@h"}, storetest.Rcpt{Line: "smtp down host1@h"}, storetest.Rcpt{Line: "local gate gate@h"})
	cmd := r.process(text)
	// Agents are fed in any order; the gate keeps one from ending the message.
	gate := r.atGate()
	if err := r.child.wait(2, "msg=recorded"); err != nil {
		t.Fatal(err)
	}
	r.kill(cmd)
	r.killAgents()
	gate()
	before := r.Parse(name)
	r.start()
	r.wait(1, "msg=queued")
	r.atGate()()
	r.wait(1, "msg=delivered", "gate@h")
	after := r.Parse(name)
	if n := len(r.notes("def")); n != 2 {
		t.Errorf("%d attempts, want no further one before its time", n)
	}
	for i, e := range before.History[:2] {
		if got := after.History[i]; got.Get("next") != e.Get("next") || e.Get("attempt") != "1" {
			t.Errorf("event %d: %+v became %+v", i, e, got)
		}
	}
}

// M27, M35 over real processes: expired, reported, gone.
func TestExpiredMessageIsReportedOnce(t *testing.T) {
	t.Parallel()
	text := strings.Replace(scriptConf("TEST_SLOTS=2", ""), "expiry=3d", "expiry=1s", 1)
	r := newRig(t, text, 0, quick)
	r.Queue("a@b", storetest.Rcpt{Line: "smtp h defer999@h"}, storetest.Rcpt{Line: "smtp down host999@h"}, storetest.Rcpt{Line: "smtp h ok@h"})
	r.start()
	r.wait(2, "msg=expired", "status=4.4.7")
	r.drained()
	if err := r.stop(); err != nil {
		t.Error(err)
	}
	r.deliveredOnce("ok@h")
	reports := r.Reports()
	if len(reports) != 1 || len(storetest.Fields(reports[0], "Final-Recipient")) != 2 ||
		!strings.Contains(reports[0], "450 4.2.1 later") || !strings.Contains(reports[0], "connection refused") {
		t.Errorf("got %d reports: %v", len(reports), reports)
	}
}

// M36 over real processes: the report does not wait for the last recipient.
func TestReportDoesNotWaitForTheLastRecipient(t *testing.T) {
	t.Parallel()
	text := "PARAM global-report-interval = 1\n" + scriptConf("TEST_SLOTS=3", "")
	r := newRig(t, text, 0, func(s *conf.Settings) { s.Interval = time.Hour })
	name := r.Queue("a@b", storetest.Rcpt{Line: "smtp h fail@h"}, storetest.Rcpt{Line: "smtp h defer1@h"})
	r.start()
	r.wait(1, "msg=report", "kind=failed", "rcpt=a@b")
	if s := r.Parse(name); storetest.Tags(s) != "- " || !s.Diagnostics[0].Reported {
		t.Errorf("tags %q, diagnostics %+v", storetest.Tags(s), s.Diagnostics)
	}
	if len(r.Reports()) != 1 {
		t.Errorf("%d reports", len(r.Reports()))
	}
}
