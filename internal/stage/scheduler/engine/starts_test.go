package engine

import (
	"fmt"
	"strings"
	"testing"

	"zmailer/internal/postoffice"
	"zmailer/internal/postoffice/operations"
	"zmailer/internal/run/config"
	"zmailer/internal/stage/scheduler/store/storetest"
)

// M22 (-F): the queue is read, nothing is started and nothing given up.
func TestFrozenSchedulerOnlyLooks(t *testing.T) {
	t.Parallel()
	r := newRig(t, scriptConf("TEST_SLOTS=5", "expiry2=1s"), 0, quick)
	r.Queue("a@b", storetest.Rcpt{Line: "smtp h ok@h"})
	r.config.Freeze = true
	r.start()
	r.wait(1, "msg=scanned", "messages=1")
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	for _, event := range []string{"msg=agent-started", "msg=delivered", "msg=expired"} {
		if n, _ := r.events.count(event); n > 0 {
			t.Errorf("%d %s", n, event)
		}
	}
}

// M22 (-S): nothing is started before all of transport/ is read.
func TestSynchronousStartReadsAllFirst(t *testing.T) {
	t.Parallel()
	r := newRig(t, scriptConf("TEST_SLOTS=5", ""), 0, quick)
	for i := range 100 {
		r.Queue("a@b", storetest.Rcpt{Line: fmt.Sprintf("smtp h ok.%d@h", i)})
	}
	r.config.ReadFirst, r.config.AtOnce = true, 1
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
	r.Queue("a@b", storetest.Rcpt{Line: "smtp H ok.1@h"}, storetest.Rcpt{Line: "smtp other ok.2@h"}, storetest.Rcpt{Line: "local h ok.3@h"})
	r.config.OnlyChannel, r.config.OnlyHost = "smtp", "h"
	r.start()
	r.wait(1, "msg=delivered", "ok.1@h")
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	if n, _ := r.events.count("msg=delivered"); n != 1 {
		t.Errorf("%d deliveries, want 1", n)
	}
	r.config.OnlyChannel = "*"
	r.start()
	r.wait(1, "msg=delivered", "ok.3@h")
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	if n, _ := r.events.count("msg=delivered", "ok.2@h"); n != 0 {
		t.Error("a thread of another host was served")
	}
	r.config.OnlyChannel = ""
	r.start()
	r.wait(1, "msg=finished")
	r.deliveredOnce("ok.1@h", "ok.2@h", "ok.3@h")
}

// M22 (-E): so many specifications are read at one go, and more are asked for when they
// are.
func TestScanIsCapped(t *testing.T) {
	b, dir := diskBox(t)
	e := newEngine(Config{Conf: b.spool.Conf, Dir: dir, Log: b.spool.Log, AtOnce: 3}, b.PO)
	e.clock.tick()
	e.pool = newPool(e.intake.load)
	defer e.pool.close()
	var names []string
	for i := range 3 {
		names = append(names, b.Queue("a@b", storetest.Rcpt{Line: fmt.Sprintf("smtp h ok.%d@h", i)}))
	}
	ready := make(chan []string, 1)
	e.scanner.listed(1, names, ready)
	if len(ready) != 0 || e.scanner.ahead != 3 {
		t.Fatalf("more is asked for while %d wait to be read", e.scanner.ahead)
	}
	for len(ready) == 0 {
		<-e.box.wake
		for _, fn := range e.box.take(nil) {
			fn()
		}
	}
	if e.scanner.ahead != 0 || e.messages.len() != 3 {
		t.Errorf("%d wait to be read, %d are known", e.scanner.ahead, e.messages.len())
	}
	if got := e.conf.atMost(namesAtOnce); got != 3 {
		t.Errorf("%d names at once", got)
	}
}

// M29: mail of a queueonly clause waits until somebody asks for its host (ETRN) or wants a
// message tried, and so does what comes after that; other mail goes.
func TestQueueOnlyMailWaitsUntilItIsAskedFor(t *testing.T) {
	t.Parallel()
	r := newRig(t, "smtp/dialup\n\tqueueonly interval=1h retries=1 "+agentCommand("TEST_SLOTS=1")+"\n"+scriptConf("TEST_SLOTS=5", ""), 0, nil)
	r.Queue("a@b", storetest.Rcpt{Line: "smtp DialUp ok.1@h"})
	r.Queue("a@b", storetest.Rcpt{Line: "smtp dialup defer1@h"})
	r.start()
	r.Queue("a@b", storetest.Rcpt{Line: "smtp other ok.2@h"})
	r.wait(1, "msg=delivered", "ok.2@h")
	r.wait(1, "msg=scanned")
	if n, _ := r.events.count("msg=agent-started", "clause=smtp/dialup"); n != 0 {
		t.Fatal("it was started by itself")
	}
	r.etrn("dialup")
	r.wait(1, "msg=delivered", "ok.1@h")
	r.wait(1, "msg=deferred", "defer1@h")
	name := r.Queue("a@b", storetest.Rcpt{Line: "smtp dialup ok.3@h"})
	r.wait(1, "msg=queued", "name="+name)
	r.Queue("a@b", storetest.Rcpt{Line: "smtp other ok.4@h"})
	r.wait(1, "msg=delivered", "ok.4@h")
	if n, _ := r.events.count("msg=delivered", "ok.3@h"); n != 0 {
		t.Fatal("new mail was started by itself")
	}
	r.ask(operations.Retry, name)
	r.wait(1, "msg=delivered", "ok.3@h")
}

// M42: the freeze flag blocks the start, with its reason.
func TestFreezeFlagBlocksTheStart(t *testing.T) {
	t.Parallel()
	r := newRig(t, storetest.Conf, 0, quick)
	if err := r.PO.FreezeService("by joe: the disk is moved"); err != nil {
		t.Fatal(err)
	}
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
