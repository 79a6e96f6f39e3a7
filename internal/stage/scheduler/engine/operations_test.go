package engine

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"zmailer/internal/postoffice/ledger"
	"zmailer/internal/postoffice/operations"
	"zmailer/internal/run/assert"
	"zmailer/internal/stage/scheduler/conf"
	"zmailer/internal/stage/scheduler/store/storetest"
	"zmailer/internal/wire/mailq"
	"zmailer/internal/workspec"
)

// slowly has every wait last an hour: what is delivered was asked for.
func slowly(s *conf.Settings) { s.Interval = time.Hour }

// ask has an operation done on a message at this moment.
func (r *rig) ask(give func(operations.Request, string) (operations.Result, error), name string, addresses ...string) operations.Result {
	r.T.Helper()
	q := r.Request(name, addresses...)
	q.Now = time.Now()
	res, err := give(q, name)
	assert.Must(r.T, err)
	return res
}

// The running scheduler follows each operation at once.
func TestRunningSchedulerFollowsOperations(t *testing.T) { // A13, M41
	t.Parallel()
	hold := func(q operations.Request, name string) (operations.Result, error) {
		return operations.Hold(q, name, time.Time{})
	}
	freeze := func(q operations.Request, name string) (operations.Result, error) {
		return operations.Freeze(q, name, workspec.CausePerson)
	}
	r := newRig(t, scriptConf("TEST_SLOTS=5", "maxthr=5"), 0, slowly)
	held := r.queue("smtp h ok.held@h", "smtp h ok.beside@h")
	frozen := r.queue("smtp h ok.frozen@h")
	a := r.queue("smtp h defer1.a@h", "smtp other defer1.other@h")
	host := r.queue("smtp dead host1.x@h")
	r.ask(hold, held, "ok.held@h")
	r.ask(freeze, frozen)
	r.start()
	r.wait(1, "msg=delivered", "ok.beside@h")
	// An operation that is younger than what was recorded counts.
	r.wait(2, "msg=recorded", "id="+r.Request(a).ID.String())
	r.wait(1, "msg=recorded", "id="+r.Request(host).ID.String())
	behind := r.queue("smtp dead ok.behind@h")
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
	b := r.queue("smtp h defer1.b@h")
	r.wait(1, "msg=deferred", "defer1.b@h")
	r.wait(1, "msg=recorded", "id="+r.Request(b).ID.String())
	r.ask(operations.Retry, b)
	r.wait(1, "msg=delivered", "defer1.b@h")
	paused := r.queue("smtp h defer1.paused@h")
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

	r.stop()
	r.deliveredOnce("ok.held@h", "ok.beside@h", "ok.frozen@h", "defer1.a@h", "defer1.other@h", "host1.x@h", "ok.behind@h", "defer1.b@h")
}

// A hold that ends by itself is over in the running scheduler, too.
func TestRunningSchedulerWakesWhatWasHeld(t *testing.T) {
	t.Parallel()
	r := newRig(t, scriptConf("", ""), 0, slowly)
	name := r.queue("smtp h ok@h")
	r.ask(func(q operations.Request, n string) (operations.Result, error) {
		return operations.Hold(q, n, q.Now.Add(4*time.Second)) // on a busy machine a start takes seconds
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
			file := r.queue("smtp h defer9@h", "smtp dead host9@h", "hold age:3d x@h")
			r.start()
			r.wait(2, "msg=recorded")
			if res := r.ask(give, file); len(res.Changed) != 3 {
				t.Errorf("about %q, want three", res.Changed)
			}
			r.wait(1, map[string]string{"expire": "msg=finished", "remove": "msg=removed", "reroute": "msg=finished"}[name], map[string]string{"remove": "rcpts="}[name])
			r.stop()
			r.empty()
			assert.Equal(t, len(r.Reports()), map[string]int{"expire": 1, "remove": 0, "reroute": 1}[name], "messages in router/")
		})
	}
}

// An operation on what an agent has at that moment holds when the agent gives it back: it
// is not in flight again.
func TestOperationOnWhatAnAgentHasHolds(t *testing.T) {
	t.Parallel()
	for name, give := range map[string]func(operations.Request, string) (operations.Result, error){
		"hold": func(q operations.Request, n string) (operations.Result, error) {
			return operations.Hold(q, n, time.Time{})
		},
		"remove": operations.Remove, "expire": operations.Expire} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, scriptConf("", ""), 0, quick)
			file := r.queue("smtp h gatelater@h")
			r.start()
			open := r.atGate()
			if res := r.ask(give, file); len(res.Busy) != 1 || len(res.Changed) != 0 {
				t.Errorf("got %+v, want it busy", res)
			}
			open()
			if name == "hold" {
				r.wait(1, "msg=recorded")
				other := r.queue("smtp h ok.1@h") // the next attempt would come before it
				r.wait(1, "msg=delivered", "ok.1@h")
				_ = other
				r.ask(operations.Release, file)
				r.wait(1, "msg=delivered", "gatelater@h")
			} else {
				r.wait(1, map[string]string{"remove": "msg=removed", "expire": "msg=finished"}[name], map[string]string{"remove": "rcpts="}[name])
			}
			r.stop()
			r.empty()
			assert.Equal(t, len(r.notes("deferred ")), 1, "attempts that failed")
		})
	}
}

// M14: by a request on the socket, and by a file with a T line, as our programs write it and as
// ZMailer's SMTP server does, which puts nothing before it and the client's address behind the
// host. Another host's mail waits.
func TestETRNStartsTheHostsThread(t *testing.T) {
	t.Parallel()
	r := newRig(t, scriptConf("", ""), 0, slowly)
	r.queue("smtp site.example defer3@h")
	r.queue("smtp other.example defer9.other@h")
	r.start()
	r.wait(2, "msg=recorded")
	c, _ := r.dial()
	for host, want := range map[string]string{"none.example": "threads=0", "Site.Example": "threads=1"} {
		_, err := c.Ask(mailq.Request{Kind: mailq.ETRN, Host: host}, nil)
		assert.Must(t, err)
		r.wait(1, "msg=etrn", "host="+host, want)
	}
	r.wait(3, "msg=recorded")
	r.drop("@ 0x00000003\ni %\nT site.example\n")
	r.wait(1, "msg=etrn", "host=site.example")
	r.wait(4, "msg=recorded")
	r.drop("T SITE.example 192.0.2.7\n")
	r.wait(1, "msg=etrn", "host=SITE.example")
	r.wait(1, "msg=delivered", "defer3@h")
	r.stop()
	r.exactly(1, "msg=deferred", "other@h")
	assert.Equal(t, len(r.List("transport")), 1, "files in transport/")
}

// etrn asks for a host as another program does.
func (r *rig) etrn(host string) { r.drop("T " + host + "\n") }

// drop puts a file into transport/, % in which is its inode number, as is its name.
func (r *rig) drop(text string) {
	r.T.Helper()
	draft := filepath.Join(r.dir, "public", "etrn")
	assert.Must(r.T, os.WriteFile(draft, nil, 0o600))
	info, err := r.FS.Stat("public/etrn")
	assert.Must(r.T, err)
	file := strconv.FormatUint(info.Ino, 10)
	assert.Must(r.T, os.WriteFile(draft, []byte(strings.ReplaceAll(text, "%", file)), 0o600))
	assert.Must(r.T, os.Rename(draft, filepath.Join(r.dir, "transport", file)))
}

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
	assert.Must(r.T, conn.SetDeadline(time.Time{}))
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
	// An event that we cause ourselves shows that it listens.
	other, _ := r.dial()
	for l.count("etrn", "probe.example") == 0 {
		_, err := other.Ask(mailq.Request{Kind: mailq.ETRN, Host: "probe.example"}, nil)
		assert.Must(r.T, err)
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

// A21: the events on the socket are those of the journal.
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
	assert.Must(t, tail.Read(func(line ledger.Line) error {
		if line.Verb == ledger.Done {
			entered[line.ID.String()] = ends{line.End.Delivered, line.End.Failed}
		}
		return nil
	}))
	if len(heard) != 20 || fmt.Sprint(heard) != fmt.Sprint(entered) {
		t.Errorf("heard %v, entered %v", heard, entered)
	}
	if l.count("routed", "") != 20 || l.count("report", "") == 0 {
		t.Errorf("%d routed, %d reports", l.count("routed", ""), l.count("report", ""))
	}
}

// A21: an operator's operations are emitted with the operator's name, each once for each recipient.
func TestOperationsAreEmittedOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t, scriptConf("TEST_SLOTS=5", ""), 0, nil)
	tail := ledger.NewTail(r.PO, true)
	defer tail.Close()
	name := r.Queue("s@a.example", storetest.Rcpt{Line: "smtp h defer9.a@h"}, storetest.Rcpt{Line: "smtp h defer9.b@h"})
	second := r.Queue("s@a.example", storetest.Rcpt{Line: "smtp h defer9.c@h"}, storetest.Rcpt{Line: "local j ok.d@h"}, storetest.Rcpt{Line: "smtp h defer9.e@h"})
	q, away := operations.Request{PostOffice: r.PO, ID: r.ID(name), Who: "zmctl, joe"}, operations.Request{PostOffice: r.PO, ID: r.ID(second), Who: "zmctl, joe"}
	r.start()
	r.wait(4, "msg=deferred")
	r.wait(1, "msg=delivered")
	l := r.listenTo()
	count := map[string]int{}
	for _, step := range []struct {
		event string
		give  func(operations.Request) (operations.Result, error)
	}{
		{"held", func(q operations.Request) (operations.Result, error) { return operations.Hold(q, name, time.Time{}) }},
		{"released", func(q operations.Request) (operations.Result, error) { return operations.Release(q, name) }},
		{"frozen", func(q operations.Request) (operations.Result, error) { return operations.Freeze(q, name, "person") }},
		{"thawed", func(q operations.Request) (operations.Result, error) { return operations.Thaw(q, name) }},
		{"held", func(q operations.Request) (operations.Result, error) { return operations.Hold(q, name, time.Time{}) }},
		{"expired", func(q operations.Request) (operations.Result, error) { return operations.Expire(q, name) }},
	} {
		q.Now = time.Now()
		_, err := step.give(q)
		assert.Must(t, err)
		count[step.event]++
		l.wait(count[step.event], step.event, "defer9.a@h")
	}
	l.wait(1, "finished", q.ID.String())
	for event, want := range count {
		for _, who := range []string{"defer9.a@h", "defer9.b@h"} {
			assert.Equal(t, l.count(event, who), want, "events %s of %s", event, who)
		}
	}
	// What the journal says of the removed and the expired is what was told.
	away.Now = time.Now()
	if _, err := operations.Remove(away, second); err != nil {
		t.Fatal(err)
	}
	l.wait(1, "finished", away.ID.String())
	for who, want := range map[string]int{"defer9.c@h": 1, "ok.d@h": 0, "defer9.e@h": 1} {
		assert.Equal(t, l.count("removed", who), want, "events removed of %s", who)
	}
	entered := map[string]int64{}
	assert.Must(t, tail.Read(func(line ledger.Line) error {
		if line.Verb == ledger.Done {
			entered["removed "+line.ID.String()] = line.End.Removed
			entered["expired "+line.ID.String()] = line.End.Expired
		}
		return nil
	}))
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
	assert.Same(t, heard, entered, "what was heard and what the journal has")
	for _, e := range l.list {
		if e.Event == "held" && (e.Who != "zmctl,_joe" || e.ID != q.ID.String() || e.Channel != "smtp") {
			t.Errorf("got %+v", e)
		}
	}
}

// A client that does not read what it asked for blocks no one: not deliveries, not other
// clients. Nor does one that says nothing.
func TestClientThatDoesNotReadBlocksNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t, scriptConf("TEST_SLOTS=20", ""), 0, nil)
	for i := range 50 {
		var list []storetest.Rcpt
		for k := range 40 {
			list = append(list, storetest.Rcpt{Line: fmt.Sprintf("smtp slow%d.example defer9.%d@slow.example", k, i)})
		}
		r.Queue("s@a.example", list...)
	}
	r.start()
	r.wait(2000, "msg=deferred")
	var deaf []net.Conn
	for range 30 {
		_, conn := r.dial()
		deaf = append(deaf, conn)
		// Many answers that no one reads: far more than the buffers of a socket take.
		go func() {
			_, _ = io.WriteString(conn, strings.Repeat("SHOW THREAD smtp slow1.example\nJSON THREADS\n", 2000))
		}()
	}
	_, conn := r.dial()
	deaf = append(deaf, conn)
	for range 100 {
		r.Queue("s@a.example", storetest.Rcpt{Line: "local joe ok@h"})
	}
	r.wait(100, "msg=delivered", "rcpt=ok@h")
	c, last := r.dial()
	if s := r.status(c); s.Messages < 50 || s.MostAtOnce > 1000 {
		t.Errorf("got %+v", s)
	}
	_ = last.Close()
	for _, conn := range deaf {
		_ = conn.Close()
	}
	r.stop()
}

// A18: what is counted in memory is what the files say, while mail moves.
func TestCountsAreThoseOfTheFiles(t *testing.T) {
	t.Parallel()
	r := newRig(t, scriptConf("TEST_SLOTS=5", ""), 0, nil)
	messages, waits := 0, 0
	add := func(n int) {
		for i := range n {
			r.Queue("s@a.example", storetest.Rcpt{Line: fmt.Sprintf("smtp h%d.example ok.%d@h", i%7, i)}, storetest.Rcpt{Line: fmt.Sprintf("smtp w%d.example defer9.%d@h", i%5, i)},
				storetest.Rcpt{Line: fmt.Sprintf("smtp f%d.example fail.%d@h", i%3, i)})
		}
		messages += n
		waits += n
	}
	add(30)
	r.start()
	add(30)
	r.wait(60, "msg=delivered")
	r.wait(60, "msg=deferred")
	r.wait(60, "msg=failed")
	r.wait(60, "msg=recorded")
	c, _ := r.dial()
	s := r.status(c)
	files, open := 0, 0
	assert.Must(t, r.PO.Queue.List(func(name string) error {
		files++
		for _, g := range r.Parse(name).Groups {
			for _, x := range g.Recipients {
				if x.Tag == workspec.TagToDo {
					open++
				}
			}
		}
		return nil
	}))
	if s.Messages != files || files != messages || s.Recipients != open || open != waits {
		t.Errorf("the socket says %d messages, %d recipients; the files %d, %d", s.Messages, s.Recipients, files, open)
	}
	got := []uint64{s.MessagesIn, s.RecipientsIn, s.MessagesOut, s.RecipientsOut, s.Deliveries, s.Failures, s.Deferrals, s.Attempts}
	if want := []uint64{60, 180, 0, 120, 60, 60, 60, 180}; fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("since the start: got %v, want %v", got, want)
	}
	assert.Equal(t, s.Threads, 5, "threads, which are the hosts that wait")
}
