package engine

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"zmailer/internal/stage/scheduler/conf"
	"zmailer/internal/stage/scheduler/store/storetest"
)

// etrn asks for a host as another program does.
func (r *rig) etrn(host string) {
	r.T.Helper()
	draft := filepath.Join(r.dir, "public", "etrn-"+host)
	if err := os.WriteFile(draft, []byte("T "+host+"\n"), 0o600); err != nil {
		r.T.Fatal(err)
	}
	info, err := r.FS.Stat("public/etrn-" + host)
	if err != nil {
		r.T.Fatal(err)
	}
	if err := os.Rename(draft, filepath.Join(r.dir, "transport", strconv.FormatUint(info.Ino, 10))); err != nil {
		r.T.Fatal(err)
	}
}

// M29: with queueonly no delivery and no agent is started until somebody asks for the
// host.
func TestQueueOnlyStartsWhenAskedFor(t *testing.T) {
	t.Parallel()
	r := newRig(t, scriptConf("", "queueonly"), 0, quick)
	r.Queue("a@b", storetest.Rcpt{Line: "smtp site.example ok.1@h"})
	r.Queue("a@b", storetest.Rcpt{Line: "smtp other.example ok.2@h"})
	r.start()
	r.wait(2, "msg=queued")
	r.etrn("site.example")
	r.wait(1, "msg=delivered", "ok.1@h")
	if err := r.stop(); err != nil {
		t.Error(err)
	}
	if got := r.notes("delivered "); len(got) != 1 {
		t.Errorf("delivered %q, want the one that was asked for", got)
	}
}

// Z10: a clause's rate is kept by the running scheduler.
func TestRateIsKept(t *testing.T) {
	t.Parallel()
	r := newRig(t, scriptConf("TEST_SLOTS=20", "rate=5/s"), 0, quick)
	const n = 8
	for range n {
		r.Queue("a@b", storetest.Rcpt{Line: "smtp site.example ok@h"})
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
	if err := r.stop(); err != nil {
		t.Error(err)
	}
}

// A host that says 421 to one of several connections goes on with the others: only the
// message that met it waits.
func TestTooManyConnectionsIsNoTroubleOfTheHost(t *testing.T) {
	t.Parallel()
	r := newRig(t, scriptConf("TEST_SLOTS=20", ""), 0, func(s *conf.Settings) { s.Interval = time.Hour })
	r.Queue("a@b", storetest.Rcpt{Line: "smtp site.example gate@h"})
	r.start()
	open := r.atGate()
	r.Queue("a@b", storetest.Rcpt{Line: "smtp site.example busy1@h"})
	r.wait(1, "msg=recorded")
	r.Queue("a@b", storetest.Rcpt{Line: "smtp site.example ok@h"})
	r.wait(1, "msg=delivered", "ok@h")
	open()
	r.wait(2, "msg=finished")
	if err := r.stop(); err != nil {
		t.Error(err)
	}
	if name := r.List("transport"); len(name) != 1 || strings.Contains(r.Read("transport/"+name[0]), "host=") {
		t.Errorf("left %q", name)
	}
}
