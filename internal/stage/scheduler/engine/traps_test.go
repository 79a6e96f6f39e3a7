package engine

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"zmailer/internal/stage/scheduler/store/storetest"
)

// The trap "configuration frozen into queued mail": commands and limits are those of
// scheduler.conf at the time of an attempt. Mail that waits is delivered by the program
// that the next start finds there, after that start's interval.
func TestOldMailGoesByTheNewConfiguration(t *testing.T) {
	t.Parallel()
	r := newRig(t, scriptConf("TEST_SLOTS=1", "maxthr=1"), 0, quick)
	name := r.Queue("a@b", storetest.Rcpt{Line: "smtp h kill@h"}, storetest.Rcpt{Line: "smtp h ok@h"})
	r.Queue("a@b", storetest.Rcpt{Line: "uucp far ok.uucp@h"})
	r.start()
	r.wait(1, "msg=deferred", "rcpt=kill@h", "without an answer")
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	before := r.Read("transport/" + name)
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
func TestSlowHostStarvesNobody(t *testing.T) {
	t.Parallel()
	r := newRig(t, scriptConf("TEST_SLOTS=5", "maxthr=2 maxring=4"), 0, quick)
	r.config.StopTimeout = 50 * time.Millisecond // those that hang are killed
	for i := range 20 {
		r.Queue("a@b", storetest.Rcpt{Line: fmt.Sprintf("smtp slow gate.%d@h", i)})
	}
	r.start()
	r.wait(20, "msg=queued")
	open := r.atGate()
	for i := range 5 {
		r.Queue("a@b", storetest.Rcpt{Line: fmt.Sprintf("smtp other ok.%d@h", i)})
	}
	r.wait(5, "msg=delivered", "host=other")
	if n, _ := r.events.count("msg=delivered", "host=slow"); n != 0 {
		t.Errorf("%d went to the slow host, which answers nobody", n)
	}
	open()
}
