package engine

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"zmailer/internal/disk/durable"
	"zmailer/internal/postoffice"
	"zmailer/internal/postoffice/operations"
	"zmailer/internal/run/assert"
	"zmailer/internal/run/config"
	"zmailer/internal/run/logtest"
	"zmailer/internal/stage/scheduler/conf"
	"zmailer/internal/stage/scheduler/store"
	"zmailer/internal/stage/scheduler/store/storetest"
	"zmailer/internal/workspec"
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
			r.stop()
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
	name := r.queue("smtp h ok@h", "smtp h defer1@h", "smtp h defer2@h",
		"smtp h fail@h", "smtp h error@h")
	r.start()
	r.wait(1, "msg=finished", name)
	r.deliveredOnce("ok@h", "defer1@h", "defer2@h")
	assert.Equal(t, strings.Join(r.notes("deferred"), ","), "deferred defer1@h,deferred defer2@h,deferred defer2@h", "deferrals")
	r.wait(1, "msg=failed", "rcpt=fail@h", "status=5.1.1", `reply="550 5.1.1 no such user"`)
	r.wait(1, "msg=failed", "rcpt=error@h", "status=5.7.1")
	r.wait(2, "msg=deferred", "rcpt=defer2@h", "status=4.2.1", "attempt=")
	reports := r.Reports()
	if len(reports) != 1 || len(storetest.Fields(reports[0], "Action")) != 2 {
		t.Errorf("got %d reports, want one for two recipients", len(reports))
	}
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
			r.queue("smtp h "+tt.rcpt, "smtp h ok.beside@h")
			r.queue("smtp h ok.other@h")
			r.start()
			r.wait(2, "msg=finished")
			r.deliveredOnce(tt.rcpt, "ok.beside@h", "ok.other@h")
			r.wait(1, "msg=delivered", "rcpt="+tt.rcpt)
			r.reports(0)
			r.stop()
		})
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
	r.stop()
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
			r.queue("smtp h gate@h")
			r.start()
			gate := r.atGate()
			r.queue("smtp h ok.later@h")
			r.wait(2, "msg=queued")
			r.cancel()
			r.wait(1, "msg=stopping", "deliveries=1")
			gate()
			r.waitEnd()
			if got := strings.Join(r.notes("delivered"), ","); !strings.Contains(got, "gate@h") || strings.Contains(got, "later") {
				t.Errorf("delivered: %s", got)
			}
			assert.Equal(t, len(r.List("transport")), 1, "specifications left, with the delivery that was not begun")
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
	name := r.queue("smtp h gate@h")
	r.start()
	defer r.atGate()()
	r.stop()
	r.wait(1, "msg=agent-killed", "signal=terminated")
	// Its lock is a dead owner's: it was released, or will be at the next start.
	if l := r.load(name); len(l.Open) != 1 || l.Open[0].Locked {
		t.Errorf("got %+v", l.Open)
	}
}

// M30, Z8: the clause cannot be served: its mail waits, which is logged once; other mail goes.
func TestProgramThatIsMissingIsLoggedOnce(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	program := filepath.Join(dir, "agent")
	text := "*/* interval=1m maxthr=20\nx/*\n\tcommand=\"" + program + "\"\nsmtp/*\n\t" + agentCommand("") + "\n"
	r := newRig(t, text, 0, quick)
	r.queue("x h waits@h")
	r.queue("smtp h ok@h")
	r.start()
	r.wait(1, "msg=agent-not-started", program, "no such file")
	r.wait(1, "msg=finished")
	r.queue("x h waits.too@h")
	r.wait(3, "msg=queued")
	// The program is installed: the start is tried again by itself.
	self, err := os.Executable()
	assert.Must(t, err)
	script := "#!/bin/sh\nTEST_AGENT=script " + raced + " exec " + self + " x\n"
	assert.Must(t, os.WriteFile(program, []byte(script), 0o755))
	r.wait(3, "msg=finished")
	r.exactly(1, "msg=agent-not-started")
	r.deliveredOnce("waits@h", "waits.too@h", "ok@h")
}

// M17, and a corrupt file: left alone and logged once; other mail goes.
func TestFilesThatCannotBeUsedAreLeftAlone(t *testing.T) {
	t.Parallel()
	r := newRig(t, scriptConf("", ""), 0, quick)
	r.config.Look = 50 * time.Millisecond
	unknown := storetest.Plant(t, r.dir, "", []byte("@ 0x00000083\ni 4711\no 10\ns local a a 1\nr           smtp h u 1\nm\nA: b\n\n"))
	corrupt := filepath.Join(r.dir, "transport", "4712")
	for path, text := range map[string]string{corrupt: "@ 0x00000003\ni 4712\nsnonsense\n", filepath.Join(r.dir, "queue", "4712"): "x"} {
		assert.Must(t, os.WriteFile(path, []byte(text), 0o644))
	}
	r.queue("smtp h ok@h", "uucp far z8@h")
	r.start()
	r.wait(1, "level=ERROR", "msg=specification-refused", "name="+unknown, "advice=")
	r.wait(1, "level=ERROR", "msg=specification-refused", "name=4712", "nonsense", "advice=")
	r.wait(1, "level=ERROR", "msg=unknown-channel", "z8@h")
	r.wait(1, "msg=delivered", "ok@h")
	// Several scans later it is still logged once, and nothing was touched.
	r.queue("smtp h ok.2@h")
	r.wait(1, "msg=finished")
	r.exactly(2, "msg=specification-refused")
	for _, name := range []string{unknown, "4712"} {
		r.Read("transport/" + name)
		r.Read("queue/" + name)
	}
	// Mended by hand and the scheduler started again, it is taken.
	assert.Must(t, os.WriteFile(corrupt, []byte("@ 0x00000003\ni 4712\no 1\ns local a a@b 1\nr           smtp h ok.mended@h 1\nm\nA: b\n\n"), 0o644))
	r.stop()
	r.start()
	r.wait(1, "msg=delivered", "ok.mended@h")
}

// K10: hand edits while it runs.
func TestFilesThatVanishAndAppear(t *testing.T) {
	t.Parallel()
	r := newRig(t, scriptConf("TEST_SLOTS=1", ""), 0, func(s *conf.Settings) { s.Interval = time.Hour; s.IdleMax = time.Hour })
	r.config.Look, r.config.tuning.alone = 50*time.Millisecond, 200*time.Millisecond
	r.start()
	r.wait(1, "msg=started")
	both := r.queue("smtp h defer9@h")
	spec := r.queue("smtp h defer9.spec@h")
	message := r.queue("smtp h defer9.message@h")
	r.wait(3, "msg=deferred")
	// Moved away as a whole, and back.
	aside := t.TempDir()
	for _, dir := range []string{"queue", "transport"} {
		assert.Must(t, os.Rename(filepath.Join(r.dir, dir, both), filepath.Join(aside, dir)))
	}
	r.wait(1, "msg=vanished", "name="+both)
	for _, dir := range []string{"queue", "transport"} {
		assert.Must(t, os.Rename(filepath.Join(aside, dir), filepath.Join(r.dir, dir, both)))
	}
	r.wait(2, "msg=queued", "name="+both)
	// A specification removed: the next start gives the message back to the router.
	assert.Must(t, os.Remove(filepath.Join(r.dir, "transport", spec)))
	r.wait(1, "msg=vanished", "name="+spec)
	// Its owner is seen as dead: this process holds no number now.
	assert.Must(t, os.WriteFile(filepath.Join(r.dir, "owners", spec[strings.IndexByte(spec, '-')+1:]), nil, 0o644))
	// A message file removed: logged as an error at the latest when it is looked at again, and
	// what is left kept, after some time in which it may come back.
	assert.Must(t, os.Remove(filepath.Join(r.dir, "queue", message)))
	r.stop()
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
	r.queue("smtp h gate@h")
	r.start()
	gate := r.atGate()
	want := []string{"gate@h"}
	for i := range 10 {
		want = append(want, fmt.Sprintf("ok.%d@h", i))
		r.queue(fmt.Sprintf("smtp h ok.%d@h", i))
	}
	r.wait(11, "msg=queued")
	gate()
	r.wait(11, "msg=finished")
	r.wait(1, "msg=agent-ended", "exit status 0")
	r.deliveredOnce(want...)
	r.exactly(1, "msg=agent-started")
	assert.Equal(t, len(r.notes("idle")), 1, "times that #idle was sent")
	r.never("level=WARN")
}

// M24: agent processes; an idle one of another ring makes room.
func TestAgentsAreLimitedByMaxTA(t *testing.T) {
	t.Parallel()
	text := "*/* interval=1m maxthr=20 maxta=1\nsmtp/*\n\t" + agentCommand("") + "\nlocal/*\n\t" + agentCommand("") + "\n"
	r := newRig(t, text, 0, func(s *conf.Settings) { s.IdleMax = time.Hour })
	r.start()
	for i := range 6 {
		r.queue(fmt.Sprintf("%s h ok.%d@h", []string{"smtp", "local"}[i%2], i))
		r.wait(i+1, "msg=finished")
	}
	r.stop()
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
		b := storetest.Open(t, r.FS, levels)
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
		r.stop()
	}
	r.deliveredOnce(want...)
}

// M22 (-F): the queue is read, nothing is started and nothing given up.
func TestFrozenSchedulerOnlyLooks(t *testing.T) {
	t.Parallel()
	r := newRig(t, scriptConf("TEST_SLOTS=5", "expiry2=1s"), 0, quick)
	r.queue("smtp h ok@h")
	r.config.Start.Freeze = true
	r.start()
	r.wait(1, "msg=scanned", "messages=1")
	r.stop()
	for _, event := range []string{"msg=agent-started", "msg=delivered", "msg=expired"} {
		r.never(event)
	}
}

// M22 (-S): nothing is started before all of transport/ is read.
func TestSynchronousStartReadsAllFirst(t *testing.T) {
	t.Parallel()
	r := newRig(t, scriptConf("TEST_SLOTS=5", ""), 0, quick)
	for i := range 100 {
		r.queue(fmt.Sprintf("smtp h ok.%d@h", i))
	}
	r.config.Start.ReadFirst, r.config.Start.AtOnce = true, 1
	r.start()
	r.wait(100, "msg=finished")
	log := r.events.String()
	scanned, started := strings.Index(log, "msg=scanned messages=100"), strings.Index(log, "msg=agent-started")
	if scanned < 0 || started < scanned {
		t.Errorf("scanned at byte %d of the log, the first agent at %d", scanned, started)
	}
}

// M22 (-p): one thread is served, the mail of all others stays as it is.
func TestOneThreadAlone(t *testing.T) {
	t.Parallel()
	r := newRig(t, scriptConf("TEST_SLOTS=5", ""), 0, quick)
	r.queue("smtp H ok.1@h", "smtp other ok.2@h", "local h ok.3@h")
	r.config.Start.OnlyChannel, r.config.Start.OnlyHost = "smtp", "h"
	r.start()
	r.wait(1, "msg=delivered", "ok.1@h")
	r.stop()
	r.exactly(1, "msg=delivered")
	r.config.Start.OnlyChannel = "*"
	r.start()
	r.wait(1, "msg=delivered", "ok.3@h")
	r.stop()
	r.never("msg=delivered", "ok.2@h")
	r.config.Start.OnlyChannel = ""
	r.start()
	r.wait(1, "msg=finished")
	r.deliveredOnce("ok.1@h", "ok.2@h", "ok.3@h")
}

// M22 (-E): so many specifications are read at one go, and more are asked for when they
// are.
func TestScanIsCapped(t *testing.T) {
	b, dir := diskBox(t)
	e := newStepped(t, b, dir, func(c *Config) { c.Start.AtOnce = 3 })
	var names []string
	for i := range 3 {
		names = append(names, b.Queue("a@b", storetest.Rcpt{Line: fmt.Sprintf("smtp h ok.%d@h", i)}))
	}
	ready := make(chan []string, 1)
	e.scanner.listed(1, names, ready)
	if len(ready) != 0 || e.scanner.ahead != 3 {
		t.Fatalf("more is asked for while %d wait to be read", e.scanner.ahead)
	}
	turns(t, e, func() bool { return len(ready) > 0 })
	if e.scanner.ahead != 0 || e.messages.len() != 3 {
		t.Errorf("%d wait to be read, %d are known", e.scanner.ahead, e.messages.len())
	}
	assert.Equal(t, e.conf.Start.atMost(namesAtOnce), 3, "names at once")
}

// M29: mail of a queueonly clause waits until somebody asks for its host (ETRN) or wants a
// message tried, and so does what comes after that; other mail goes.
func TestQueueOnlyMailWaitsUntilItIsAskedFor(t *testing.T) {
	t.Parallel()
	r := newRig(t, "smtp/dialup\n\tqueueonly interval=1h retries=1 "+agentCommand("TEST_SLOTS=1")+"\n"+scriptConf("TEST_SLOTS=5", ""), 0, nil)
	r.queue("smtp DialUp ok.1@h")
	r.queue("smtp dialup defer1@h")
	r.start()
	r.queue("smtp other ok.2@h")
	r.wait(1, "msg=delivered", "ok.2@h")
	r.wait(1, "msg=scanned")
	r.never("msg=agent-started", "clause=smtp/dialup")
	r.etrn("dialup")
	r.wait(1, "msg=delivered", "ok.1@h")
	r.wait(1, "msg=deferred", "defer1@h")
	name := r.queue("smtp dialup ok.3@h")
	r.wait(1, "msg=queued", "name="+name)
	r.queue("smtp other ok.4@h")
	r.wait(1, "msg=delivered", "ok.4@h")
	r.never("msg=delivered", "ok.3@h")
	r.ask(operations.Retry, name)
	r.wait(1, "msg=delivered", "ok.3@h")
}

// M42: the freeze flag blocks the start, with its reason.
func TestFreezeFlagBlocksTheStart(t *testing.T) {
	t.Parallel()
	r := newRig(t, storetest.Conf, 0, quick)
	assert.Must(t, r.PO.FreezeService("by joe: the disk is moved"))
	if err := r.PO.FreezeService("again"); err == nil {
		t.Error("frozen twice")
	}
	err := Run(t.Context(), r.config)
	if config.Exit(err) != config.ExitConfig || !strings.Contains(err.Error(), postoffice.FreezeFlag+": the service is frozen (by joe: the disk is moved)") {
		t.Errorf("got %v", err)
	}
	for _, want := range []bool{true, false} {
		if was, err := r.PO.ThawService(); was != want || err != nil {
			t.Errorf("thaw: got %t, %v", was, err)
		}
	}
	r.start()
	r.wait(1, "msg=scanned")
}

// An agent that takes its time to start is waited for: what it will take starts no
// further ones.
func TestSlowStartBringsNoFurtherAgents(t *testing.T) {
	t.Parallel()
	r := newRig(t, scriptConf("TEST_SLOTS=20 TEST_START=gate", ""), 0, quick)
	queue := func(n int) {
		for i := range 5 {
			r.queue(fmt.Sprintf("smtp h%d ok.%d.%d@h", i, n, i))
		}
	}
	queue(0)
	r.start()
	gate := r.atGate()
	for n := 1; n < 4; n++ {
		queue(n)
		r.wait(5*(n+1), "msg=queued")
	}
	r.exactly(1, "msg=agent-started")
	gate()
	r.wait(20, "msg=finished")
}

// Z10: a clause's rate is kept by the running scheduler.
func TestRateIsKept(t *testing.T) {
	t.Parallel()
	r := newRig(t, scriptConf("TEST_SLOTS=20", "rate=5/s"), 0, quick)
	const n = 8
	for range n {
		r.queue("smtp site.example ok@h")
	}
	begin := time.Now()
	r.start()
	r.wait(n, "msg=finished")
	if took, least := time.Since(begin), (n-1)*200*time.Millisecond; took < least {
		t.Errorf("%d took %v, want at least %v", n, took, least)
	}
	if strings.Contains(r.events.String(), "msg=deferred") {
		t.Error("to wait for a token counts as a deferral")
	}
	r.stop()
}

// A host that says 421 to one of several connections goes on with the others: only the
// message that met it waits.
func TestTooManyConnectionsIsNoTroubleOfTheHost(t *testing.T) {
	t.Parallel()
	r := newRig(t, scriptConf("TEST_SLOTS=20", ""), 0, func(s *conf.Settings) { s.Interval = time.Hour })
	r.queue("smtp site.example gate@h")
	r.start()
	open := r.atGate()
	r.queue("smtp site.example busy1@h")
	r.wait(1, "msg=recorded")
	r.queue("smtp site.example ok@h")
	r.wait(1, "msg=delivered", "ok@h")
	open()
	r.wait(2, "msg=finished")
	r.stop()
	if name := r.List("transport"); len(name) != 1 || strings.Contains(r.Read("transport/"+name[0]), "host=") {
		t.Errorf("left %q", name)
	}
}

// S7: a message that always kills its agent waits like one that is deferred. And the trap
// "configuration frozen into queued mail": commands and limits are those of
// scheduler.conf at the time of an attempt. Mail that waits is delivered by the program
// that the next start finds there, after that start's interval.
func TestOldMailGoesByTheNewConfiguration(t *testing.T) {
	t.Parallel()
	r := newRig(t, scriptConf("TEST_SLOTS=1", "maxthr=1"), 0, quick)
	name := r.queue("smtp h kill@h", "smtp h ok@h")
	r.queue("uucp far ok.uucp@h")
	r.start()
	r.wait(1, "msg=deferred", "rcpt=kill@h", "status=4.3.0", "without an answer", "attempt=1")
	r.wait(2, "level=WARN", "msg=agent-ended", "exit status 7")
	r.stop()
	before := r.Read("transport/" + name)
	if spec := r.Parse(name); deferred(spec, &spec.Groups[0].Recipients[0]) == 0 {
		t.Errorf("no deferral in the history %+v", spec.History)
	}
	// The program that died of this message is replaced, its channel is served, and
	// several deliveries may run at once.
	other := strings.Replace(scriptConf("TEST_SLOTS=5 TEST_MENDED=1", "maxthr=5"), "smtp/*\n", "uucp/*\nsmtp/*\n", 1)
	conf := mustConf(t, other)
	for _, channel := range []string{"smtp", "uucp"} {
		quick(conf.Match(channel, "h"))
	}
	r.config.Conf = conf
	r.start()
	r.wait(2, "msg=finished")
	r.deliveredOnce("kill@h", "ok@h", "ok.uucp@h")
	if strings.Contains(before, "TEST_") || strings.Contains(before, "maxthr") {
		t.Errorf("the specification knows of the configuration: %s", before)
	}
}

// Z9, and the trap "one slow host that starves all": as many deliveries as a host may
// have hang, with more behind them; mail for another host goes.
func TestSlowHostStarvesNoOther(t *testing.T) {
	t.Parallel()
	r := newRig(t, scriptConf("TEST_SLOTS=5", "maxthr=2 maxring=4"), 0, quick)
	r.config.StopTimeout = 50 * time.Millisecond // those that hang are killed
	for i := range 20 {
		r.queue(fmt.Sprintf("smtp slow gate.%d@h", i))
	}
	r.start()
	r.wait(20, "msg=queued")
	open := r.atGate()
	for i := range 5 {
		r.queue(fmt.Sprintf("smtp other ok.%d@h", i))
	}
	r.wait(5, "msg=delivered", "host=other")
	r.never("msg=delivered", "host=slow")
	open()
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
			r.queue(fmt.Sprintf("smtp h%d ok.%d.%d@h", i, n, i), "smtp h fail@h")
		}
		r.start()
		r.wait(10*n, "msg=finished")
		r.stop()
	}
	run(1)
	goroutines, files := count()
	run(2)
	logtest.Eventually(t, "no more goroutines and files than before", func() bool {
		g, f := count()
		return g <= goroutines && f <= files
	})
}

// A5 K4: the history becomes long while the message waits: it is summarised with its other
// threads parked, which go on after that with the attempts that they had.
func TestHistoryIsSummarisedWhileItWaits(t *testing.T) {
	t.Parallel()
	r := newRig(t, scriptConf("TEST_SLOTS=20", ""), 1, quick)
	name := r.queue("smtp h defer99@h", "smtp h ok.1@h", "smtp g defer99@g", "local x ok.2@x", "smtp i host99@i")
	had := r.Lengthen(name, 32<<10-6000)
	r.start()
	r.wait(1, "msg=summarised", name)
	r.wait(1, "msg=finished", name)
	r.stop()
	r.deliveredOnce("defer99@h", "ok.1@h", "defer99@g", "ok.2@x", "host99@i")
	assert.Equal(t, len(r.notes("deferred ")), 2*(99-had), "attempts beside the %d in the file", had)
	r.never("level=WARN")
}

// Del2 Del3: an agent from which a job was taken back may have the old file open and lock a
// recipient in it. The history is not summarised, though it is long, while a job of another
// message keeps that agent busy.
func TestDel3HistoryIsNotSummarisedWhileItIsInDoubt(t *testing.T) {
	t.Parallel()
	r := newRig(t, scriptConf("TEST_SLOTS=20", ""), 1, quick)
	r.queue("smtp h1 gate@h1")
	name := r.queue("smtp h2 resync@h2", "smtp g defer130@g")
	r.Lengthen(name, 32<<10-2500)
	// It comes when the agent is busy.
	file, away := filepath.Join(r.dir, postoffice.Transport, name), filepath.Join(r.dir, "away")
	assert.Must(t, os.Rename(file, away))
	r.start()
	gate := r.atGate()
	assert.Must(t, os.Rename(away, file))
	r.wait(1, "msg=resync", "host=h2")
	r.wait(50, "msg=deferred", "rcpt=defer130@g")
	r.never("msg=summarised")
	gate()
	r.wait(1, "msg=summarised", name)
	r.wait(2, "msg=finished")
	r.stop()
	r.deliveredOnce("gate@h1", "resync@h2", "defer130@g")
}

// Dur1: a message whose end is refused is shown to the operator, in the log and in the
// alarms, and an operation on it is carried out.
func TestDur1MessageWhoseEndIsRefusedIsShown(t *testing.T) {
	b, dir := diskBox(t)
	file := b.Queue("sender@far.example", storetest.Rcpt{Line: "smtp h one@h"})
	b.Mark(file, 0, "failed", workspec.TagFailed)
	err := fmt.Errorf("end %s: %w: one@h", file, store.ErrUnreported)
	e := newStepped(t, b, dir, nil)
	e.intake.refuse(file, err)
	b.WantLog("level=ERROR", "msg=end-refused", file, "one@h", "advice=")
	if r := e.intake.refused[file]; r.kind != "unreported" || !r.kept {
		t.Errorf("got %+v", r)
	}
	b.Ordered(operations.Remove(b.Request(file), file))
}
