package engine

import (
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"zmailer/internal/postoffice"
	"zmailer/internal/postoffice/ledger"
	"zmailer/internal/postoffice/operations"
	"zmailer/internal/stage/scheduler/store/storetest"
	"zmailer/internal/wire/mailq"
)

// told is an event of the socket.
type told struct {
	Event, ID, Rcpt, Channel, Host, Status, Reply, Who string
	Count                                              int
}

// listening is a client that listens.
type listening struct {
	t    testing.TB
	mu   sync.Mutex
	list []told
	more chan struct{}
}

var errEnough = errors.New("enough")

// listenTo listens until the test ends.
func (r *rig) listenTo() *listening {
	r.T.Helper()
	c, conn := r.dial()
	if err := conn.SetDeadline(time.Time{}); err != nil {
		r.T.Fatal(err)
	}
	l := &listening{t: r.T, more: make(chan struct{}, 1)}
	var ended sync.WaitGroup
	ended.Go(func() {
		// It ends with the connection.
		_, _ = c.Ask(mailq.Request{Kind: mailq.JSONEvents}, func(line string) error {
			var e told
			if err := json.Unmarshal([]byte(line), &e); err != nil {
				r.T.Errorf("event %q: %v", line, err)
				return errEnough
			}
			l.mu.Lock()
			l.list = append(l.list, e)
			l.mu.Unlock()
			select {
			case l.more <- struct{}{}:
			default:
			}
			return nil
		})
	})
	r.T.Cleanup(func() {
		_ = conn.Close()
		ended.Wait()
	})
	// An event of our own making tells when it listens.
	other, _ := r.dial()
	for l.count("etrn", "probe.example") == 0 {
		askedLines(r.T, other, mailq.Request{Kind: mailq.ETRN, Host: "probe.example"})
		select {
		case <-l.more:
		case <-time.After(20 * time.Millisecond):
		}
	}
	return l
}

// count counts the events about a recipient or host.
func (l *listening) count(event, of string) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range l.list {
		if e.Event == event && (of == "" || e.Rcpt == of || e.Host == of || e.ID == of) {
			n++
		}
	}
	return n
}

// wait waits for n events about a recipient, host or message.
func (l *listening) wait(n int, event, of string) {
	l.t.Helper()
	deadline := time.After(patience)
	for l.count(event, of) < n {
		select {
		case <-l.more:
		case <-deadline:
			l.t.Fatalf("%d events %s of %s, want %d: %+v", l.count(event, of), event, of, n, l.list)
		}
	}
}

// A21: what is told on the socket is what the journal has.
func TestEventsAreThoseOfTheJournal(t *testing.T) {
	t.Parallel()
	r := newRig(t, scriptConf("TEST_SLOTS=5", ""), 0, nil)
	tail := ledger.NewTail(r.PO, true)
	defer tail.Close()
	r.start()
	l := r.listenTo()
	for i := range 20 {
		r.Queue("s@a.example", storetest.Rcpt{Line: fmt.Sprintf("smtp h ok.%d@h", i)}, storetest.Rcpt{Line: fmt.Sprintf("smtp h fail.%d@h", i)}, storetest.Rcpt{Line: "local j ok.x@h"})
	}
	l.wait(20, "finished", "")
	// By ID: what the events say of its recipients, and what the journal says.
	type ends struct{ delivered, failed int64 }
	heard, entered := map[string]ends{}, map[string]ends{}
	l.mu.Lock()
	for _, e := range l.list {
		h := heard[e.ID]
		switch e.Event {
		case "delivered":
			h.delivered++
		case "failed":
			h.failed++
		default:
			continue
		}
		heard[e.ID] = h
		if e.Channel == "" || e.Host == "" || e.Status == "" || e.Reply == "" || e.Rcpt == "" {
			t.Errorf("got %+v", e)
		}
	}
	l.mu.Unlock()
	if err := tail.Read(func(line ledger.Line) error {
		if line.Verb == ledger.Done {
			entered[line.ID.String()] = ends{line.End.Delivered, line.End.Failed}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if len(heard) != 20 || fmt.Sprint(heard) != fmt.Sprint(entered) {
		t.Errorf("heard %v, entered %v", heard, entered)
	}
	if l.count("routed", "") != 20 || l.count("report", "") == 0 {
		t.Errorf("%d routed, %d reports", l.count("routed", ""), l.count("report", ""))
	}
}

// A21: an operator's orders are told with who gave them, each once for each recipient.
func TestOrdersAreToldOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t, scriptConf("TEST_SLOTS=5", ""), 0, nil)
	tail := ledger.NewTail(r.PO, true)
	defer tail.Close()
	name := r.Queue("s@a.example", storetest.Rcpt{Line: "smtp h defer9.a@h"}, storetest.Rcpt{Line: "smtp h defer9.b@h"})
	second := r.Queue("s@a.example", storetest.Rcpt{Line: "smtp h defer9.c@h"}, storetest.Rcpt{Line: "local j ok.d@h"}, storetest.Rcpt{Line: "smtp h defer9.e@h"})
	id := func(name string) postoffice.SpoolID {
		info, err := r.PO.Queue.StatMessage(name)
		if err != nil {
			t.Fatal(err)
		}
		return postoffice.IDOf(info)
	}
	q, away := operations.Request{PostOffice: r.PO, ID: id(name), Who: "zmctl, joe"}, operations.Request{PostOffice: r.PO, ID: id(second), Who: "zmctl, joe"}
	r.start()
	r.wait(4, "msg=deferred")
	r.wait(1, "msg=delivered")
	l := r.listenTo()
	do := func(event string, n int, give func(operations.Request) (operations.Result, error)) {
		t.Helper()
		q.Now = time.Now()
		if _, err := give(q); err != nil {
			t.Fatalf("%s: %v", event, err)
		}
		l.wait(n, event, "defer9.a@h")
	}
	do("held", 1, func(q operations.Request) (operations.Result, error) { return operations.Hold(q, name, time.Time{}) })
	do("released", 1, func(q operations.Request) (operations.Result, error) { return operations.Release(q, name) })
	do("frozen", 1, func(q operations.Request) (operations.Result, error) { return operations.Freeze(q, name, "person") })
	do("thawed", 1, func(q operations.Request) (operations.Result, error) { return operations.Thaw(q, name) })
	do("held", 2, func(q operations.Request) (operations.Result, error) { return operations.Hold(q, name, time.Time{}) })
	do("expired", 1, func(q operations.Request) (operations.Result, error) { return operations.Expire(q, name) })
	l.wait(1, "finished", q.ID.String())
	for event, want := range map[string]int{"held": 2, "released": 1, "frozen": 1, "thawed": 1, "expired": 1} {
		for _, who := range []string{"defer9.a@h", "defer9.b@h"} {
			if got := l.count(event, who); got != want {
				t.Errorf("%s of %s was told %d times, want %d", event, who, got, want)
			}
		}
	}
	// What the journal says of the removed and the expired is what was told.
	away.Now = time.Now()
	if _, err := operations.Remove(away, second); err != nil {
		t.Fatal(err)
	}
	l.wait(1, "finished", away.ID.String())
	for who, want := range map[string]int{"defer9.c@h": 1, "ok.d@h": 0, "defer9.e@h": 1} {
		if got := l.count("removed", who); got != want {
			t.Errorf("removed of %s was told %d times, want %d", who, got, want)
		}
	}
	entered := map[string]int64{}
	if err := tail.Read(func(line ledger.Line) error {
		if line.Verb == ledger.Done {
			entered["removed "+line.ID.String()] = line.End.Removed
			entered["expired "+line.ID.String()] = line.End.Expired
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	heard := map[string]int64{}
	for _, m := range []string{q.ID.String(), away.ID.String()} {
		heard["removed "+m], heard["expired "+m] = 0, 0
	}
	for _, e := range l.list {
		if e.Event == "removed" || e.Event == "expired" {
			heard[e.Event+" "+e.ID]++
		}
	}
	if diff := cmp.Diff(entered, heard); diff != "" {
		t.Errorf("entered - heard +:\n%s", diff)
	}
	for _, e := range l.list {
		if e.Event == "held" && (e.Who != "zmctl,_joe" || e.ID != q.ID.String() || e.Channel != "smtp") {
			t.Errorf("got %+v", e)
		}
	}
}
