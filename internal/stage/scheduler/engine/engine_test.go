package engine

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"zmailer/internal/disk/durable"
	"zmailer/internal/stage/scheduler/conf"
	"zmailer/internal/stage/scheduler/store/storetest"
)

func scriptConf(vars, keys string) string {
	return "*/* interval=1m retries=\"1 2\" expiry=3d maxthr=20 " + keys + "\nsmtp/*\nlocal/*\n\t" + agentCommand(vars) + "\n"
}

func TestEveryRecipientIsDeliveredOnce(t *testing.T) {
	t.Parallel()
	for _, slots := range []int{1, 20} {
		t.Run(fmt.Sprintf("slots=%d", slots), func(t *testing.T) {
			t.Parallel()
			r := newRig(t, scriptConf(fmt.Sprintf("TEST_SLOTS=%d", slots), ""), 0, quick)
			var want []string
			add := func(n int) {
				for range n {
					i := len(want)
					list := []storetest.Rcpt{
						{Line: fmt.Sprintf("smtp host%d ok.%d@h", i%5, i)},
						{Line: fmt.Sprintf("smtp HOST%d ok.x%d@h", i%5, i)},
						{Line: fmt.Sprintf("local joe ok.y%d@h", i)},
					}
					want = append(want, fmt.Sprintf("ok.%d@h", i), fmt.Sprintf("ok.x%d@h", i), fmt.Sprintf("ok.y%d@h", i))
					r.Queue("a@b", list...)
				}
			}
			add(20) // before the start, and while it runs
			r.start()
			add(20)
			r.wait(40, "msg=finished")
			if err := r.stop(); err != nil {
				t.Error(err)
			}
			r.deliveredOnce(want...)
			r.wait(120, "msg=delivered", "status=2.0.0", `reply="250 2.0.0 queued"`, "took=")
		})
	}
}

// S8, and the trap "indexes into a list that was pruned": outcomes are per recipient,
// which are named by their place in the file, not in a list; what was delivered is
// skipped in later rounds.
func TestTwoPartialRounds(t *testing.T) {
	t.Parallel()
	r := newRig(t, scriptConf("TEST_SLOTS=20", ""), 0, quick)
	name := r.Queue("a@b", storetest.Rcpt{Line: "smtp h ok@h"}, storetest.Rcpt{Line: "smtp h defer1@h"}, storetest.Rcpt{Line: "smtp h defer2@h"},
		storetest.Rcpt{Line: "smtp h fail@h"}, storetest.Rcpt{Line: "smtp h error@h"})
	r.start()
	r.wait(1, "msg=finished", name)
	r.deliveredOnce("ok@h", "defer1@h", "defer2@h")
	if got := strings.Join(r.notes("deferred"), ","); got != "deferred defer1@h,deferred defer2@h,deferred defer2@h" {
		t.Errorf("deferrals: %s", got)
	}
	r.wait(1, "msg=failed", "rcpt=fail@h", "status=5.1.1", `reply="550 5.1.1 no such user"`)
	r.wait(1, "msg=failed", "rcpt=error@h", "status=5.7.1")
	r.wait(2, "msg=deferred", "rcpt=defer2@h", "status=4.2.1", "attempt=")
	reports := r.Reports()
	if len(reports) != 1 || len(storetest.Fields(reports[0], "Action")) != 2 {
		t.Errorf("got %d reports, want one for two recipients", len(reports))
	}
}

// Z18, M34: the host's trouble makes one probe at a time; retryat is kept.
func TestHostTroubleIsProbedThenAllGo(t *testing.T) {
	t.Parallel()
	r := newRig(t, scriptConf("TEST_SLOTS=5", "maxthr=5"), 0, quick)
	want := []string{"host2@h"}
	r.Queue("a@b", storetest.Rcpt{Line: "smtp down host2@h"})
	r.start()
	r.wait(1, "msg=deferred", "host2@h", "connection refused")
	for i := range 20 {
		want = append(want, fmt.Sprintf("ok.%d@h", i))
		r.Queue("a@b", storetest.Rcpt{Line: fmt.Sprintf("smtp down ok.%d@h", i)})
	}
	r.Queue("a@b", storetest.Rcpt{Line: "smtp up retryat1@h"})
	want = append(want, "retryat1@h")
	r.wait(22, "msg=finished")
	r.deliveredOnce(want...)
	r.wait(1, "msg=deferred", "retryat1@h")
}

// S7: an agent that dies or babbles loses nothing, and nothing is delivered twice.
func TestAgentDiesAtEachStep(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		rcpt      string
		vars      string
		delivered bool
	}{
		"before it locks":                   {"die@h", "TEST_SLOTS=1", true},
		"with several slots":                {"die@h", "TEST_SLOTS=20", true},
		"after it locked":                   {"dielocked@h", "TEST_SLOTS=1", true},
		"after a diagnostic":                {"diediag@h", "TEST_SLOTS=1", true},
		"after the tag":                     {"dietagged@h", "TEST_SLOTS=1", true},
		"inside its answer":                 {"diepart@h", "TEST_SLOTS=1", true},
		"it does not answer, nothing done":  {"silent@h", "TEST_SLOTS=1", true},
		"it does not answer, one of slots":  {"silent@h", "TEST_SLOTS=20", true},
		"it does not answer, but delivered": {"mute@h", "TEST_SLOTS=1", true},
		"it cannot use the file":            {"resync@h", "TEST_SLOTS=1", true},
		"resync with several slots":         {"resync@h", "TEST_SLOTS=20", true},
		"it babbles":                        {"ok@h", "TEST_SLOTS=1 TEST_BABBLE=1", true},
		"it babbles with several slots":     {"ok@h", "TEST_SLOTS=20 TEST_BABBLE=1", true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, scriptConf(tt.vars, ""), 0, quick)
			r.Queue("a@b", storetest.Rcpt{Line: "smtp h " + tt.rcpt}, storetest.Rcpt{Line: "smtp h ok.beside@h"})
			r.Queue("a@b", storetest.Rcpt{Line: "smtp h ok.other@h"})
			r.start()
			r.wait(2, "msg=finished")
			r.deliveredOnce(tt.rcpt, "ok.beside@h", "ok.other@h")
			r.wait(1, "msg=delivered", "rcpt="+tt.rcpt)
			if n := len(r.Reports()); n != 0 {
				t.Errorf("%d reports", n)
			}
			if err := r.stop(); err != nil {
				t.Error(err)
			}
		})
	}
}

// S7: a message that always kills its agent waits like one that is deferred.
func TestMessageThatKillsItsAgentIsDeferred(t *testing.T) {
	t.Parallel()
	r := newRig(t, scriptConf("TEST_SLOTS=2", ""), 0, func(s *conf.Settings) { s.Interval = time.Hour })
	name := r.Queue("a@b", storetest.Rcpt{Line: "smtp h kill@h"})
	r.start()
	r.wait(1, "msg=deferred", "rcpt=kill@h", "status=4.3.0", "without an answer", "attempt=1")
	r.wait(2, "level=WARN", "msg=agent-ended", "exit status 7")
	r.Queue("a@b", storetest.Rcpt{Line: "smtp h ok@h"})
	r.wait(1, "msg=finished")
	if err := r.stop(); err != nil {
		t.Error(err)
	}
	if s := r.Parse(name); storetest.Tags(s) != " " || deferred(s, &s.Groups[0].Recipients[0]) != 1 {
		t.Errorf("tags %q, history %+v", storetest.Tags(s), s.History)
	}
}

// A1
func TestSecondSchedulerNamesTheFirst(t *testing.T) {
	t.Parallel()
	r := newRig(t, scriptConf("", ""), 0, quick)
	r.start()
	r.wait(1, "msg=started")
	if err := Run(t.Context(), r.config); !errors.Is(err, durable.ErrLocked) || !strings.Contains(err.Error(), "pid "+strconv.Itoa(os.Getpid())) {
		t.Errorf("got %v, want ErrLocked and the pid", err)
	}
	if err := r.stop(); err != nil {
		t.Error(err)
	}
	r.start()
	r.wait(2, "msg=started")
}

// A17
func TestStopLetsRunningDeliveriesFinish(t *testing.T) {
	t.Parallel()
	for _, slots := range []string{"1", "2"} {
		t.Run("slots="+slots, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, scriptConf("TEST_SLOTS="+slots, "maxthr=1"), 0, quick)
			r.Queue("a@b", storetest.Rcpt{Line: "smtp h gate@h"})
			r.start()
			gate := r.atGate()
			r.Queue("a@b", storetest.Rcpt{Line: "smtp h ok.later@h"})
			r.wait(2, "msg=queued")
			r.cancel()
			r.wait(1, "msg=stopping", "deliveries=1")
			gate()
			if err := r.waitEnd(); err != nil {
				t.Error(err)
			}
			if got := strings.Join(r.notes("delivered"), ","); !strings.Contains(got, "gate@h") || strings.Contains(got, "later") {
				t.Errorf("delivered: %s", got)
			}
			if got := len(r.List("transport")); got != 1 {
				t.Errorf("%d specifications left, want the one that was not begun", got)
			}
			r.wait(1, "msg=delivered", "gate@h")
			r.start()
			r.wait(2, "msg=finished")
			r.deliveredOnce("gate@h", "ok.later@h")
		})
	}
}

// A17: the deadline.
func TestStopKillsAtTheDeadline(t *testing.T) {
	t.Parallel()
	r := newRig(t, scriptConf("TEST_SLOTS=1", ""), 0, quick)
	r.config.StopTimeout = 50 * time.Millisecond
	name := r.Queue("a@b", storetest.Rcpt{Line: "smtp h gate@h"})
	r.start()
	defer r.atGate()()
	if err := r.stop(); err != nil {
		t.Error(err)
	}
	r.wait(1, "msg=agent-killed", "signal=terminated")
	// Its lock is a dead owner's: it was released, or will be at the next start.
	if l := r.load(name); len(l.Open) != 1 || l.Open[0].Locked {
		t.Errorf("got %+v", l.Open)
	}
}

// M30, Z8: the clause cannot be served: its mail waits, told once; the rest goes.
func TestProgramThatIsMissingIsToldOnce(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	program := filepath.Join(dir, "agent")
	text := "*/* interval=1m maxthr=20\nx/*\n\tcommand=\"" + program + "\"\nsmtp/*\n\t" + agentCommand("") + "\n"
	r := newRig(t, text, 0, quick)
	r.Queue("a@b", storetest.Rcpt{Line: "x h waits@h"})
	r.Queue("a@b", storetest.Rcpt{Line: "smtp h ok@h"})
	r.start()
	r.wait(1, "msg=agent-not-started", program, "no such file")
	r.wait(1, "msg=finished")
	r.Queue("a@b", storetest.Rcpt{Line: "x h waits.too@h"})
	r.wait(3, "msg=queued")
	// The program is installed: the start is tried again by itself.
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	script := "#!/bin/sh\nTEST_AGENT=script " + raced + " exec " + self + " x\n"
	if err := os.WriteFile(program, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	r.wait(3, "msg=finished")
	if n, _ := r.events.count("msg=agent-not-started"); n != 1 {
		t.Errorf("told %d times", n)
	}
	r.deliveredOnce("waits@h", "waits.too@h", "ok@h")
}

// M17, and a corrupt file: left alone, told once, the rest goes on.
func TestFilesThatCannotBeUsedAreLeftAlone(t *testing.T) {
	t.Parallel()
	r := newRig(t, scriptConf("", ""), 0, quick)
	r.config.Look = 50 * time.Millisecond
	unknown := storetest.Plant(t, r.dir, "", []byte("@ 0x00000083\ni 4711\no 10\ns local a a 1\nr           smtp h u 1\nm\nA: b\n\n"))
	corrupt := filepath.Join(r.dir, "transport", "4712")
	for path, text := range map[string]string{corrupt: "@ 0x00000003\ni 4712\nsnonsense\n", filepath.Join(r.dir, "queue", "4712"): "x"} {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	r.Queue("a@b", storetest.Rcpt{Line: "smtp h ok@h"}, storetest.Rcpt{Line: "uucp far z8@h"})
	r.start()
	r.wait(1, "level=ERROR", "msg=specification-refused", "name="+unknown, "advice=")
	r.wait(1, "level=ERROR", "msg=specification-refused", "name=4712", "nonsense", "advice=")
	r.wait(1, "level=ERROR", "msg=unknown-channel", "z8@h")
	r.wait(1, "msg=delivered", "ok@h")
	// Several looks later it is still told once, and nothing was touched.
	r.Queue("a@b", storetest.Rcpt{Line: "smtp h ok.2@h"})
	r.wait(1, "msg=finished")
	if n, _ := r.events.count("msg=specification-refused"); n != 2 {
		t.Errorf("told %d times, want 2", n)
	}
	for _, name := range []string{unknown, "4712"} {
		r.Read("transport/" + name)
		r.Read("queue/" + name)
	}
	// Mended by hand and the scheduler started again, it is taken.
	if err := os.WriteFile(corrupt, []byte("@ 0x00000003\ni 4712\no 1\ns local a a@b 1\nr           smtp h ok.mended@h 1\nm\nA: b\n\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	r.start()
	r.wait(1, "msg=delivered", "ok.mended@h")
}

// K10: hand edits while it runs.
func TestFilesThatVanishAndAppear(t *testing.T) {
	t.Parallel()
	r := newRig(t, scriptConf("TEST_SLOTS=1", ""), 0, func(s *conf.Settings) { s.Interval = time.Hour; s.IdleMax = time.Hour })
	r.config.Look, r.config.alone = 50*time.Millisecond, 200*time.Millisecond
	r.start()
	r.wait(1, "msg=started")
	both := r.Queue("a@b", storetest.Rcpt{Line: "smtp h defer9@h"})
	spec := r.Queue("a@b", storetest.Rcpt{Line: "smtp h defer9.spec@h"})
	message := r.Queue("a@b", storetest.Rcpt{Line: "smtp h defer9.message@h"})
	r.wait(3, "msg=deferred")
	// Moved away as a whole, and back.
	aside := t.TempDir()
	for _, dir := range []string{"queue", "transport"} {
		if err := os.Rename(filepath.Join(r.dir, dir, both), filepath.Join(aside, dir)); err != nil {
			t.Fatal(err)
		}
	}
	r.wait(1, "msg=vanished", "name="+both)
	for _, dir := range []string{"queue", "transport"} {
		if err := os.Rename(filepath.Join(aside, dir), filepath.Join(r.dir, dir, both)); err != nil {
			t.Fatal(err)
		}
	}
	r.wait(2, "msg=queued", "name="+both)
	// A specification removed: the next start gives the message back to the router.
	if err := os.Remove(filepath.Join(r.dir, "transport", spec)); err != nil {
		t.Fatal(err)
	}
	r.wait(1, "msg=vanished", "name="+spec)
	// Its owner is seen as dead: this process holds no number now.
	if err := os.WriteFile(filepath.Join(r.dir, "owners", spec[strings.IndexByte(spec, '-')+1:]), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	// A message file removed: told loudly at the latest when it is looked at again, and
	// what is left kept, after some time in which it may come back.
	if err := os.Remove(filepath.Join(r.dir, "queue", message)); err != nil {
		t.Fatal(err)
	}
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	r.start()
	r.wait(1, "level=ERROR", "msg=specification-refused", "name="+message, "not in queue/", "advice=")
	r.wait(1, "level=ERROR", "msg=message-lost", "defer9.message@h")
	r.wait(1, "msg=recovered", "action=quarantined", "name="+message)
	r.Read("quarantine/transport." + message + ".message-gone")
	r.wait(1, "msg=recovered", "action=rerouted", spec)
}

// M25: what an agent may have queued; #idle once; idle agents end.
func TestOverfeedAndIdle(t *testing.T) {
	t.Parallel()
	r := newRig(t, scriptConf("TEST_SLOTS=1", "overfeed=3 maxthr=1"), 0, func(s *conf.Settings) { s.IdleMax = 500 * time.Millisecond })
	r.Queue("a@b", storetest.Rcpt{Line: "smtp h gate@h"})
	r.start()
	gate := r.atGate()
	want := []string{"gate@h"}
	for i := range 10 {
		want = append(want, fmt.Sprintf("ok.%d@h", i))
		r.Queue("a@b", storetest.Rcpt{Line: fmt.Sprintf("smtp h ok.%d@h", i)})
	}
	r.wait(11, "msg=queued")
	gate()
	r.wait(11, "msg=finished")
	r.wait(1, "msg=agent-ended", "exit status 0")
	r.deliveredOnce(want...)
	if n, _ := r.events.count("msg=agent-started"); n != 1 {
		t.Errorf("%d agents for one thread with maxthr=1", n)
	}
	if n := len(r.notes("idle")); n != 1 {
		t.Errorf("#idle was said %d times, want once", n)
	}
	if n, _ := r.events.count("level=WARN"); n != 0 {
		t.Error("warnings in the log")
	}
}

// M24: agent processes; an idle one of another ring makes room.
func TestAgentsAreLimitedByMaxTA(t *testing.T) {
	t.Parallel()
	text := "*/* interval=1m maxthr=20 maxta=1\nsmtp/*\n\t" + agentCommand("") + "\nlocal/*\n\t" + agentCommand("") + "\n"
	r := newRig(t, text, 0, func(s *conf.Settings) { s.IdleMax = time.Hour })
	r.start()
	for i := range 6 {
		r.Queue("a@b", storetest.Rcpt{Line: fmt.Sprintf("%s h ok.%d@h", []string{"smtp", "local"}[i%2], i)})
		r.wait(i+1, "msg=finished")
	}
	if err := r.stop(); err != nil {
		t.Error(err)
	}
	alive := 0
	for line := range strings.Lines(r.events.String()) {
		switch {
		case strings.Contains(line, "msg=agent-started"):
			alive++
		case strings.Contains(line, "msg=agent-ended"):
			alive--
		}
		if alive > 1 {
			t.Fatal("two agents at once")
		}
	}
}

// M21: the depth of the hash directories is changed on a live spool.
func TestChangeOfHashDepth(t *testing.T) {
	t.Parallel()
	r := newRig(t, scriptConf("TEST_SLOTS=4", ""), 2, quick)
	var want []string
	for _, levels := range []int{2, 0, 1, 2} {
		b := openBox(t, r.FS, levels, storetest.Conf)
		for range 5 {
			i := len(want)
			want = append(want, fmt.Sprintf("ok.%d@h", i))
			b.Queue("a@b", storetest.Rcpt{Line: fmt.Sprintf("smtp h ok.%d@h", i)})
		}
		r.config.HashLevels = levels
		r.start()
		// New ones come by hints in directories that did not exist.
		for range 5 {
			i := len(want)
			want = append(want, fmt.Sprintf("ok.%d@h", i))
			b.Queue("a@b", storetest.Rcpt{Line: fmt.Sprintf("smtp h ok.%d@h", i)})
		}
		r.wait(len(want), "msg=finished")
		if err := r.stop(); err != nil {
			t.Fatal(err)
		}
	}
	r.deliveredOnce(want...)
}
