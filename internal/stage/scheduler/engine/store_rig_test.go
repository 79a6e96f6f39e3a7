package engine

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"zmailer/internal/postoffice/operations"
	"zmailer/internal/stage/scheduler/store"
	"zmailer/internal/stage/scheduler/store/storetest"
	"zmailer/internal/workspec"
)

// M27 in the running scheduler: a message of which nothing is served goes, with its
// report.
func TestRunningSchedulerExpiresWhatIsHeld(t *testing.T) {
	t.Parallel()
	r := newRig(t, strings.Replace(scriptConf("", ""), "expiry=3d", "expiry=1s", 1), 0, quick)
	r.Queue("a@b", storetest.Rcpt{Line: "uucp far x@h"}, storetest.Rcpt{Line: "hold w y@h"})
	r.Queue("a@b", storetest.Rcpt{Line: "uucp far z@h"}, storetest.Rcpt{Line: "smtp h ok@h"})
	r.start()
	r.wait(3, "msg=expired", "status=5.4.7")
	r.drained()
	if err := r.stop(); err != nil {
		t.Error(err)
	}
	r.deliveredOnce("ok@h")
	if n := len(r.Reports()); n != 2 {
		t.Errorf("%d reports, want one for each message", n)
	}
}

// A5 K4: the history becomes long while the message waits: it is summarised with its other
// threads parked, which go on after that with the attempts that they had.
func TestHistoryIsSummarisedWhileItWaits(t *testing.T) {
	t.Parallel()
	r := newRig(t, scriptConf("TEST_SLOTS=20", ""), 1, quick)
	name := r.Queue("a@b", storetest.Rcpt{Line: "smtp h defer99@h"}, storetest.Rcpt{Line: "smtp h ok.1@h"}, storetest.Rcpt{Line: "smtp g defer99@g"}, storetest.Rcpt{Line: "local x ok.2@x"}, storetest.Rcpt{Line: "smtp i host99@i"})
	had := r.Lengthen(name, 32<<10-6000)
	r.start()
	r.wait(1, "msg=summarised", name)
	r.wait(1, "msg=finished", name)
	if err := r.stop(); err != nil {
		t.Error(err)
	}
	r.deliveredOnce("defer99@h", "ok.1@h", "defer99@g", "ok.2@x", "host99@i")
	if n := len(r.notes("deferred ")); n != 2*(99-had) {
		t.Errorf("%d attempts, want %d of each: %d stood in the file", n, 99-had, had)
	}
	if n, _ := r.events.count("level=WARN"); n != 0 {
		t.Error("warnings in the log")
	}
}

// Dur1: a message whose end is refused is shown to the operator, in the log and in the
// alarms, and an operation on it is carried out.
func TestDur1MessageWhoseEndIsRefusedIsShown(t *testing.T) {
	b, _ := diskBox(t)
	file := b.Queue("sender@far.example", storetest.Rcpt{Line: "smtp h one@h"})
	b.Mark(file, 0, "failed", workspec.TagFailed)
	err := fmt.Errorf("end %s: %w: one@h", file, store.ErrUnreported)
	e := newEngine(Config{Conf: b.spool.Conf, Log: b.spool.Log}, b.PO)
	e.spool, e.now = b.spool, time.Now()
	e.pool = newPool(e.intake.load)
	defer e.pool.close()
	e.intake.refuse(file, err)
	b.WantLog("level=ERROR", "msg=end-refused", file, "one@h", "advice=")
	if r := e.intake.refused[file]; r.kind != "unreported" || !r.kept {
		t.Errorf("got %+v", r)
	}
	b.Ordered(operations.Remove(b.Request(file), file))
}
