package scheduler

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"zmailer/internal/durable"
)

func scriptConf(vars, keys string) string {
	return "*/* interval=1m retries=\"1 2\" expiry=3d maxthr=20 " + keys + "\nsmtp/*\nlocal/*\n\t" + agentCommand(vars) + "\n"
}

func TestEveryRecipientIsDeliveredOnce(t *testing.T) {
	for _, slots := range []int{1, 20} {
		t.Run(fmt.Sprintf("slots=%d", slots), func(t *testing.T) {
			r := newRig(t, scriptConf(fmt.Sprintf("TEST_SLOTS=%d", slots), ""), 0, quick)
			var want []string
			add := func(n int) {
				for range n {
					i := len(want)
					list := []rcpt{
						{line: fmt.Sprintf("smtp host%d ok.%d@h", i%5, i)},
						{line: fmt.Sprintf("smtp HOST%d ok.x%d@h", i%5, i)},
						{line: fmt.Sprintf("local joe ok.y%d@h", i)},
					}
					want = append(want, fmt.Sprintf("ok.%d@h", i), fmt.Sprintf("ok.x%d@h", i), fmt.Sprintf("ok.y%d@h", i))
					r.queue("a@b", list...)
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

// S8: outcomes are per recipient; what was delivered is skipped in later rounds.
func TestTwoPartialRounds(t *testing.T) {
	r := newRig(t, scriptConf("TEST_SLOTS=20", ""), 0, quick)
	name := r.queue("a@b", rcpt{line: "smtp h ok@h"}, rcpt{line: "smtp h defer1@h"}, rcpt{line: "smtp h defer2@h"},
		rcpt{line: "smtp h fail@h"}, rcpt{line: "smtp h error@h"})
	r.start()
	r.wait(1, "msg=finished", name)
	r.deliveredOnce("ok@h", "defer1@h", "defer2@h")
	if got := strings.Join(r.notes("deferred"), ","); got != "deferred defer1@h,deferred defer2@h,deferred defer2@h" {
		t.Errorf("deferrals: %s", got)
	}
	r.wait(1, "msg=failed", "rcpt=fail@h", "status=5.1.1", `reply="550 5.1.1 no such user"`)
	r.wait(1, "msg=failed", "rcpt=error@h", "status=5.7.1")
	r.wait(2, "msg=deferred", "rcpt=defer2@h", "status=4.2.1", "attempt=")
	reports := r.reports()
	if len(reports) != 1 || len(fields(reports[0], "Action")) != 2 {
		t.Errorf("got %d reports, want one for two recipients", len(reports))
	}
}

// Z18, M34: the host's trouble makes one probe at a time; retryat is kept.
func TestHostTroubleIsProbedThenAllGo(t *testing.T) {
	r := newRig(t, scriptConf("TEST_SLOTS=5", "maxthr=5"), 0, quick)
	want := []string{"host2@h"}
	r.queue("a@b", rcpt{line: "smtp down host2@h"})
	r.start()
	r.wait(1, "msg=deferred", "host2@h", "connection refused")
	for i := range 20 {
		want = append(want, fmt.Sprintf("ok.%d@h", i))
		r.queue("a@b", rcpt{line: fmt.Sprintf("smtp down ok.%d@h", i)})
	}
	r.queue("a@b", rcpt{line: "smtp up retryat1@h"})
	want = append(want, "retryat1@h")
	r.wait(22, "msg=finished")
	r.deliveredOnce(want...)
	r.wait(1, "msg=deferred", "retryat1@h")
}

// S7: an agent that dies or babbles loses nothing, and nothing is delivered twice.
func TestAgentDiesAtEachStep(t *testing.T) {
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
			r := newRig(t, scriptConf(tt.vars, ""), 0, quick)
			r.queue("a@b", rcpt{line: "smtp h " + tt.rcpt}, rcpt{line: "smtp h ok.beside@h"})
			r.queue("a@b", rcpt{line: "smtp h ok.other@h"})
			r.start()
			r.wait(2, "msg=finished")
			r.deliveredOnce(tt.rcpt, "ok.beside@h", "ok.other@h")
			r.wait(1, "msg=delivered", "rcpt="+tt.rcpt)
			if n := len(r.reports()); n != 0 {
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
	r := newRig(t, scriptConf("TEST_SLOTS=2", ""), 0, func(s *Settings) { s.Interval = time.Hour })
	name := r.queue("a@b", rcpt{line: "smtp h kill@h"})
	r.start()
	r.wait(1, "msg=deferred", "rcpt=kill@h", "status=4.3.0", "without an answer", "attempt=1")
	r.wait(2, "level=WARN", "msg=agent-ended", "exit status 7")
	r.queue("a@b", rcpt{line: "smtp h ok@h"})
	r.wait(1, "msg=finished")
	if err := r.stop(); err != nil {
		t.Error(err)
	}
	if s := r.parse(name); tags(s) != " " || deferred(s, &s.Groups[0].Recipients[0]) != 1 {
		t.Errorf("tags %q, history %+v", tags(s), s.History)
	}
}

// A1
func TestSecondSchedulerNamesTheFirst(t *testing.T) {
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
	for _, slots := range []string{"1", "2"} {
		t.Run("slots="+slots, func(t *testing.T) {
			r := newRig(t, scriptConf("TEST_SLOTS="+slots, "maxthr=1"), 0, quick)
			r.queue("a@b", rcpt{line: "smtp h gate@h"})
			r.start()
			gate := r.atGate()
			r.queue("a@b", rcpt{line: "smtp h ok.later@h"})
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
			if got := len(r.list("transport")); got != 1 {
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
	r := newRig(t, scriptConf("TEST_SLOTS=1", ""), 0, quick)
	r.config.StopTimeout = 50 * time.Millisecond
	name := r.queue("a@b", rcpt{line: "smtp h gate@h"})
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
	dir := t.TempDir()
	program := filepath.Join(dir, "agent")
	conf := "*/* interval=1m maxthr=20\nx/*\n\tcommand=\"" + program + "\"\nsmtp/*\n\t" + agentCommand("") + "\n"
	r := newRig(t, conf, 0, quick)
	r.queue("a@b", rcpt{line: "x h waits@h"})
	r.queue("a@b", rcpt{line: "smtp h ok@h"})
	r.start()
	r.wait(1, "msg=agent-not-started", program, "no such file")
	r.wait(1, "msg=finished")
	r.queue("a@b", rcpt{line: "x h waits.too@h"})
	r.wait(3, "msg=queued")
	// The program is installed: the start is tried again by itself.
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	text := "#!/bin/sh\nTEST_AGENT=script exec " + self + " x\n"
	if err := os.WriteFile(program, []byte(text), 0o755); err != nil {
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
	r := newRig(t, scriptConf("", ""), 0, quick)
	r.config.Look = 50 * time.Millisecond
	unknown := plant(t, r.dir, "", []byte("@ 0x00000083\ni 4711\no 10\ns local a a 1\nr           smtp h u 1\nm\nA: b\n\n"))
	corrupt := filepath.Join(r.dir, "transport", "4712")
	for path, text := range map[string]string{corrupt: "@ 0x00000003\ni 4712\nsnonsense\n", filepath.Join(r.dir, "queue", "4712"): "x"} {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	r.queue("a@b", rcpt{line: "smtp h ok@h"}, rcpt{line: "uucp far z8@h"})
	r.start()
	r.wait(1, "level=ERROR", "msg=specification-refused", "name="+unknown, "advice=")
	r.wait(1, "level=ERROR", "msg=specification-refused", "name=4712", "nonsense", "advice=")
	r.wait(1, "level=ERROR", "msg=unknown-channel", "z8@h")
	r.wait(1, "msg=delivered", "ok@h")
	// Several looks later it is still told once, and nothing was touched.
	r.queue("a@b", rcpt{line: "smtp h ok.2@h"})
	r.wait(1, "msg=finished")
	if n, _ := r.events.count("msg=specification-refused"); n != 2 {
		t.Errorf("told %d times, want 2", n)
	}
	for _, name := range []string{unknown, "4712"} {
		r.read("transport/" + name)
		r.read("queue/" + name)
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
	r := newRig(t, scriptConf("TEST_SLOTS=1", ""), 0, func(s *Settings) { s.Interval = time.Hour; s.IdleMax = time.Hour })
	r.config.Look = 50 * time.Millisecond
	r.start()
	r.wait(1, "msg=started")
	both := r.queue("a@b", rcpt{line: "smtp h defer9@h"})
	spec := r.queue("a@b", rcpt{line: "smtp h defer9.spec@h"})
	message := r.queue("a@b", rcpt{line: "smtp h defer9.message@h"})
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
	// A message file removed: told loudly at the latest when it is looked at again.
	if err := os.Remove(filepath.Join(r.dir, "queue", message)); err != nil {
		t.Fatal(err)
	}
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	r.start()
	r.wait(1, "level=ERROR", "msg=message-lost", "defer9.message@h")
	r.wait(1, "msg=recovered", "action=rerouted", spec)
}

// M25: what an agent may have queued; #idle once; idle agents end.
func TestOverfeedAndIdle(t *testing.T) {
	r := newRig(t, scriptConf("TEST_SLOTS=1", "overfeed=3 maxthr=1"), 0, func(s *Settings) { s.IdleMax = 100 * time.Millisecond })
	r.queue("a@b", rcpt{line: "smtp h gate@h"})
	r.start()
	gate := r.atGate()
	want := []string{"gate@h"}
	for i := range 10 {
		want = append(want, fmt.Sprintf("ok.%d@h", i))
		r.queue("a@b", rcpt{line: fmt.Sprintf("smtp h ok.%d@h", i)})
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
	conf := "*/* interval=1m maxthr=20 maxta=1\nsmtp/*\n\t" + agentCommand("") + "\nlocal/*\n\t" + agentCommand("") + "\n"
	r := newRig(t, conf, 0, func(s *Settings) { s.IdleMax = time.Hour })
	r.start()
	for i := range 6 {
		r.queue("a@b", rcpt{line: fmt.Sprintf("%s h ok.%d@h", []string{"smtp", "local"}[i%2], i)})
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
	r := newRig(t, scriptConf("TEST_SLOTS=4", ""), 2, quick)
	var want []string
	for _, levels := range []int{2, 0, 1, 2} {
		b := openBox(t, r.fs, levels, testConf)
		for range 5 {
			i := len(want)
			want = append(want, fmt.Sprintf("ok.%d@h", i))
			b.queue("a@b", rcpt{line: fmt.Sprintf("smtp h ok.%d@h", i)})
		}
		r.config.HashLevels = levels
		r.start()
		// New ones come by hints in directories that did not exist.
		for range 5 {
			i := len(want)
			want = append(want, fmt.Sprintf("ok.%d@h", i))
			b.queue("a@b", rcpt{line: fmt.Sprintf("smtp h ok.%d@h", i)})
		}
		r.wait(len(want), "msg=finished")
		if err := r.stop(); err != nil {
			t.Fatal(err)
		}
	}
	r.deliveredOnce(want...)
}

// M32, M31: recorded answers of ZMailer's own agents.
func TestRecordedAgentsAreUnderstood(t *testing.T) {
	tests := map[string]struct {
		channel, host string
		done          int
		want          []string // words of log lines
	}{
		"smtp-1198.txt":    {"smtp", "a.example.com", 8, []string{"msg=delivered", `reply="250 2.0.0 queued as SINK10291"`}},
		"smtp-1199.txt":    {"smtp", "b.example.com", 4, []string{"msg=failed", "status=5.1.1", "5.1.1 fail1@b.example.com: no such user here"}},
		"mailbox-1202.txt": {"local", "", 5, []string{"msg=delivered", "reply=Ok"}},
		"hold-1205.txt":    {"hold", "timeout:1795220119", 0, []string{"msg=deferred", "status=4.4.3", "attempt=3"}},
	}
	for transcript, tt := range tests {
		t.Run(transcript, func(t *testing.T) {
			recorded, err := filepath.Abs(filepath.Join("..", "taproto", "testdata", transcript))
			if err != nil {
				t.Fatal(err)
			}
			diagnostic, err := filepath.Abs(filepath.Join("..", "workspec", "testdata", "samples", "05-fail", "transport-after"))
			if err != nil {
				t.Fatal(err)
			}
			self, err := os.Executable()
			if err != nil {
				t.Fatal(err)
			}
			conf := fmt.Sprintf("*/* interval=1m expiry=0\n%s/*\n\tcommand=\"[TEST_AGENT=playback TEST_TRANSCRIPT=%s TEST_DIAGNOSTIC=%s] %s\"\n",
				tt.channel, recorded, diagnostic, self)
			r := newRig(t, conf, 2, nil)
			r.conf.Match(tt.channel, "h").Interval = 20 * time.Millisecond
			plantRecorded(t, r, recorded, tt.channel)
			r.start()
			r.wait(tt.done, "msg=finished")
			r.wait(1, tt.want...)
			for _, note := range r.notes("told") {
				if !strings.Contains(note, `\t`) && note != `told "#idle"` {
					t.Errorf("the agent was told %s", note)
				}
			}
			if n, _ := r.events.count("level=WARN"); n != 0 {
				t.Error("warnings in the log")
			}
		})
	}
}

// plantRecorded makes the files that a recorded agent worked on, with recipients at
// the recorded offsets.
func plantRecorded(t *testing.T, r *rig, transcript, channel string) {
	t.Helper()
	text, err := os.ReadFile(transcript)
	if err != nil {
		t.Fatal(err)
	}
	offsets, hosts, dirs := map[string][]int{}, map[string]string{}, map[string]string{}
	for line := range strings.Lines(string(text)) {
		if jobs, ok := strings.CutPrefix(line, "SCHED->TA "); ok {
			for job := range strings.SplitSeq(strings.TrimSpace(jobs), `\n`) {
				if path, host, ok := strings.Cut(job, `\t`); ok {
					number := filepath.Base(path)
					hosts[number], dirs[number] = host, filepath.Dir(path)
				}
			}
		}
		if answer, ok := strings.CutPrefix(line, "TA->SCHED "); ok {
			number, rest, ok := strings.Cut(answer, "/")
			off, _, _ := strings.Cut(rest, `\t`)
			if n, err := strconv.Atoi(off); ok && err == nil && !slices.Contains(offsets[number], n) {
				offsets[number] = append(offsets[number], n)
			}
		}
	}
	for number, list := range offsets {
		slices.Sort(list)
		spec := "@ 0x00000007\ni " + number + "\no 100\ns local a a@b 1\n"
		for i, off := range list {
			if i == 0 {
				spec = strings.Replace(spec, "s local", strings.Repeat("l", 1)+" "+strings.Repeat("x", off-len(spec)-3)+"\ns local", 1)
			} else {
				spec += "N " + strings.Repeat("x", off-len(spec)-3) + "\n"
			}
			if len(spec) != off {
				t.Fatalf("recipient of %s at %d, not %d", number, len(spec), off)
			}
			spec += fmt.Sprintf("r           %s %s user%d@h 1\n", channel, hosts[number], i)
		}
		plant(t, r.dir, dirs[number], []byte(spec+"m\nA: b\n\n"))
	}
}

// No goroutine, descriptor or process is left behind.
func TestNothingIsLeftAfterStop(t *testing.T) {
	count := func() (goroutines, files int) {
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Skip("no /proc")
		}
		return runtime.NumGoroutine(), len(entries)
	}
	r := newRig(t, scriptConf("TEST_SLOTS=3", ""), 1, quick)
	run := func(n int) {
		for i := range 10 {
			r.queue("a@b", rcpt{line: fmt.Sprintf("smtp h%d ok.%d.%d@h", i, n, i)}, rcpt{line: "smtp h fail@h"})
		}
		r.start()
		r.wait(10*n, "msg=finished")
		if err := r.stop(); err != nil {
			t.Fatal(err)
		}
	}
	run(1)
	goroutines, files := count()
	run(2)
	deadline := time.Now().Add(patience)
	for {
		g, f := count()
		if g <= goroutines && f <= files {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("goroutines %d before, %d after; files %d before, %d after", goroutines, g, files, f)
		}
		runtime.Gosched()
	}
}

// K12: a disk that errs for a while: told once, nothing lost, goes on by itself.
func TestDiskTroublePassesByItself(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Skip("root may write into a directory without the write bit")
	}
	r := newRig(t, scriptConf("", ""), 0, quick)
	transport := filepath.Join(r.dir, "transport")
	r.queue("a@b", rcpt{line: "smtp h gate@h"})
	r.start()
	gate := r.atGate()
	if err := os.Chmod(transport, 0o555); err != nil {
		t.Fatal(err)
	}
	gate()
	r.wait(1, "level=ERROR", "msg=disk", "permission denied")
	if err := os.Chmod(transport, 0o755); err != nil {
		t.Fatal(err)
	}
	r.wait(1, "msg=finished")
	r.deliveredOnce("gate@h")
}
