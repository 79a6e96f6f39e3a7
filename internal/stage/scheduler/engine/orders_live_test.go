package engine

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"zmailer/internal/postoffice/operations"
	"zmailer/internal/stage/scheduler/conf"
	"zmailer/internal/stage/scheduler/store/storetest"
	"zmailer/internal/workspec"
)

// slowly has every wait last an hour: what is delivered was asked for.
func slowly(s *conf.Settings) { s.Interval = time.Hour }

// ask gives an order about a message at this moment.
func (r *rig) ask(give func(operations.Request, string) (operations.Result, error), name string, addresses ...string) operations.Result {
	r.T.Helper()
	q := r.Request(name, addresses...)
	q.Now = time.Now()
	res, err := give(q, name)
	if err != nil {
		r.T.Fatal(err)
	}
	return res
}

// The running scheduler follows each order at once.
func TestRunningSchedulerFollowsOrders(t *testing.T) { // A13, M41
	t.Parallel()
	hold := func(q operations.Request, name string) (operations.Result, error) {
		return operations.Hold(q, name, time.Time{})
	}
	freeze := func(q operations.Request, name string) (operations.Result, error) {
		return operations.Freeze(q, name, workspec.CausePerson)
	}
	r := newRig(t, scriptConf("TEST_SLOTS=5", "maxthr=5"), 0, slowly)
	held := r.Queue("a@b", storetest.Rcpt{Line: "smtp h ok.held@h"}, storetest.Rcpt{Line: "smtp h ok.beside@h"})
	frozen := r.Queue("a@b", storetest.Rcpt{Line: "smtp h ok.frozen@h"})
	a := r.Queue("a@b", storetest.Rcpt{Line: "smtp h defer1.a@h"}, storetest.Rcpt{Line: "smtp other defer1.other@h"})
	host := r.Queue("a@b", storetest.Rcpt{Line: "smtp dead host1.x@h"})
	r.ask(hold, held, "ok.held@h")
	r.ask(freeze, frozen)
	r.start()
	r.wait(1, "msg=delivered", "ok.beside@h")
	// An order that is younger than what was recorded counts.
	r.wait(2, "msg=recorded", "id="+r.Request(a).ID.String())
	r.wait(1, "msg=recorded", "id="+r.Request(host).ID.String())
	behind := r.Queue("a@b", storetest.Rcpt{Line: "smtp dead ok.behind@h"})
	r.wait(1, "msg=queued", "name="+behind)

	r.ask(operations.Release, held)
	r.wait(1, "msg=delivered", "ok.held@h")
	r.ask(operations.Thaw, frozen)
	r.wait(1, "msg=delivered", "ok.frozen@h")
	r.ask(operations.Retry, a, "defer1.a@h")
	r.wait(1, "msg=delivered", "defer1.a@h")
	r.ask(operations.Retry, host)
	r.wait(1, "msg=delivered", "host1.x@h")
	r.wait(1, "msg=delivered", "ok.behind@h") // the host has answered

	// What is held is not retried, and is given up all the same.
	b := r.Queue("a@b", storetest.Rcpt{Line: "smtp h defer1.b@h"})
	r.wait(1, "msg=deferred", "defer1.b@h")
	r.wait(1, "msg=recorded", "id="+r.Request(b).ID.String())
	r.ask(operations.Retry, b)
	r.wait(1, "msg=delivered", "defer1.b@h")
	paused := r.Queue("a@b", storetest.Rcpt{Line: "smtp h defer1.paused@h"})
	r.wait(1, "msg=recorded", "id="+r.Request(paused).ID.String())
	pausedID := r.Request(paused).ID.String()
	r.ask(hold, paused)
	r.ask(operations.Retry, a) // defer1.other@h
	r.wait(1, "msg=delivered", "defer1.other@h")
	res, err := operations.Retry(r.Request(paused), paused)
	if err == nil {
		t.Errorf("retried what is held: %+v", res)
	}
	r.ask(operations.Expire, paused)
	r.wait(1, "msg=finished", "id="+pausedID)

	if err := r.stop(); err != nil {
		t.Error(err)
	}
	r.deliveredOnce("ok.held@h", "ok.beside@h", "ok.frozen@h", "defer1.a@h", "defer1.other@h", "host1.x@h", "ok.behind@h", "defer1.b@h")
}

// A hold that ends by itself is over in the running scheduler, too.
func TestRunningSchedulerWakesWhatWasHeld(t *testing.T) {
	t.Parallel()
	r := newRig(t, scriptConf("", ""), 0, slowly)
	name := r.Queue("a@b", storetest.Rcpt{Line: "smtp h ok@h"})
	r.ask(func(q operations.Request, n string) (operations.Result, error) {
		return operations.Hold(q, n, q.Now.Add(time.Second))
	}, name)
	r.start()
	r.wait(1, "msg=queued", "recipients=0", "waiting=1")
	r.wait(1, "msg=delivered", "ok@h")
	r.wait(1, "msg=finished")
}

// Given up, taken out and routed again while the scheduler runs: the message ends.
func TestRunningSchedulerEndsWhatIsGivenUp(t *testing.T) {
	t.Parallel()
	for name, give := range map[string]func(operations.Request, string) (operations.Result, error){"expire": func(q operations.Request, n string) (operations.Result, error) {
		q.Report = true
		return operations.Expire(q, n)
	}, "remove": operations.Remove, "reroute": operations.Reroute} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, scriptConf("", ""), 0, slowly)
			file := r.Queue("a@b", storetest.Rcpt{Line: "smtp h defer9@h"}, storetest.Rcpt{Line: "smtp dead host9@h"}, storetest.Rcpt{Line: "hold age:3d x@h"})
			r.start()
			r.wait(2, "msg=recorded")
			if res := r.ask(give, file); len(res.Changed) != 3 {
				t.Errorf("about %q, want three", res.Changed)
			}
			r.wait(1, map[string]string{"expire": "msg=finished", "remove": "msg=removed", "reroute": "msg=finished"}[name], map[string]string{"remove": "rcpts="}[name])
			if err := r.stop(); err != nil {
				t.Error(err)
			}
			r.empty()
			if n := len(r.Reports()); n != map[string]int{"expire": 1, "remove": 0, "reroute": 1}[name] {
				t.Errorf("%d messages in router/", n)
			}
		})
	}
}

// An order about what an agent has at that moment holds when the agent gives it back: it
// is not in flight again.
func TestOrderAboutWhatIsInFlightHolds(t *testing.T) {
	t.Parallel()
	for name, give := range map[string]func(operations.Request, string) (operations.Result, error){
		"hold": func(q operations.Request, n string) (operations.Result, error) {
			return operations.Hold(q, n, time.Time{})
		},
		"remove": operations.Remove, "expire": operations.Expire} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, scriptConf("", ""), 0, quick)
			file := r.Queue("a@b", storetest.Rcpt{Line: "smtp h gatelater@h"})
			r.start()
			open := r.atGate()
			if res := r.ask(give, file); len(res.Busy) != 1 || len(res.Changed) != 0 {
				t.Errorf("got %+v, want it busy", res)
			}
			open()
			if name == "hold" {
				r.wait(1, "msg=recorded")
				other := r.Queue("a@b", storetest.Rcpt{Line: "smtp h ok.1@h"}) // the next attempt would come before it
				r.wait(1, "msg=delivered", "ok.1@h")
				_ = other
				r.ask(operations.Release, file)
				r.wait(1, "msg=delivered", "gatelater@h")
			} else {
				r.wait(1, map[string]string{"remove": "msg=removed", "expire": "msg=finished"}[name], map[string]string{"remove": "rcpts="}[name])
			}
			if err := r.stop(); err != nil {
				t.Error(err)
			}
			r.empty()
			if got := len(r.notes("deferred ")); got != 1 {
				t.Errorf("%d attempts failed, want one", got)
			}
		})
	}
}

// M14: a file with a T line, as our programs write it and as ZMailer's SMTP server does,
// which puts nothing before it and the client's address behind the host.
func TestETRNFileStartsTheHostsThread(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{"ours": "@ 0x00000003\ni %\nT site.example\n", "ZMailer's": "T SITE.example 192.0.2.7\n"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, scriptConf("", ""), 0, slowly)
			r.Queue("a@b", storetest.Rcpt{Line: "smtp site.example host1@h"})
			r.Queue("a@b", storetest.Rcpt{Line: "smtp other.example host1.other@h"})
			r.start()
			r.wait(2, "msg=recorded")
			draft := filepath.Join(r.dir, "public", "etrn")
			if err := os.WriteFile(draft, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			info, err := r.FS.Stat("public/etrn")
			if err != nil {
				t.Fatal(err)
			}
			file := strconv.FormatUint(info.Ino, 10)
			if err := os.WriteFile(draft, []byte(strings.ReplaceAll(text, "%", file)), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.Rename(draft, filepath.Join(r.dir, "transport", file)); err != nil {
				t.Fatal(err)
			}
			r.wait(1, "msg=etrn", "host="+strings.Fields(text[strings.Index(text, "T ")+2:])[0])
			r.wait(1, "msg=delivered", "host1@h")
			if err := r.stop(); err != nil {
				t.Error(err)
			}
			if slices.Contains(r.List("transport"), file) || len(r.notes("delivered ")) != 1 {
				t.Errorf("left %q, delivered %q", r.List("transport"), r.notes("delivered "))
			}
		})
	}
}
