package scheduler

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"zmailer/internal/stage/scheduler/thread"
)

// Clients that say nothing do not keep others from the query socket: the one that has been
// idle the longest makes room.
func TestDel9IdleClientsDoNotFillTheQuerySocket(t *testing.T) {
	t.Parallel()
	r := newRig(t, "PARAM mailqsock = 127.0.0.1:0\n"+scriptConf("", ""), 0, nil)
	r.start()
	var idle []net.Conn
	for range queryClients {
		_, conn := r.dialTCP()
		idle = append(idle, conn)
	}
	r.dialTCP() // it gets a greeting
	r.wait(1, "msg=query-dropped")
	if _, err := io.ReadAll(idle[0]); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("the client that came first is still connected")
	}
}

// The administrator on this machine gets in though all places are taken by clients that
// are being served.
func TestDel9LocalAdministratorAlwaysGetsIn(t *testing.T) {
	t.Parallel()
	r := newRig(t, scriptConf("", ""), 0, nil)
	r.start()
	for range queryClients {
		c, conn := r.dial()
		r.status(c)
		// It listens for events: it is not idle.
		if _, err := conn.Write([]byte("JSON EVENTS\n")); err != nil {
			t.Fatal(err)
		}
		var first [2]byte
		if _, err := io.ReadFull(conn, first[:]); err != nil || first[0] != '+' {
			t.Fatal(string(first[:]), err)
		}
	}
	c, _ := r.dial()
	r.status(c)
	r.wait(1, "msg=query-dropped")
}

// A stranger never takes the administrator's place, and takes an idle stranger's before
// that of one that is served.
func TestDel9WhoMakesRoom(t *testing.T) {
	session := func(trusted bool, idle int64) *querySession {
		s := &querySession{trusted: trusted}
		s.idle.Store(idle)
		return s
	}
	admin, adminIdle := session(true, 0), session(true, 1)
	busy, old, young := session(false, 0), session(false, 5), session(false, 6)
	for name, c := range map[string]struct {
		list    []*querySession
		trusted bool
		want    *querySession
	}{
		"for a stranger, the idle one":           {[]*querySession{admin, adminIdle, busy, young, old}, false, old},
		"for a stranger, none that is served":    {[]*querySession{admin, adminIdle, busy}, false, nil},
		"for the administrator, the idle one":    {[]*querySession{admin, adminIdle, busy, young, old}, true, old},
		"for the administrator, a busy one":      {[]*querySession{admin, adminIdle, busy}, true, busy},
		"for the administrator, an idle own":     {[]*querySession{admin, adminIdle}, true, adminIdle},
		"for the administrator, even a busy own": {[]*querySession{admin}, true, admin},
	} {
		if got := (&queryPlaces{list: c.list}).victim(c.trusted); got != c.want {
			t.Errorf("%s: got %+v, want %+v", name, got, c.want)
		}
	}
}

// A listing, the search for one thread and an ETRN look at a thousand threads in a turn of
// the engine and not at more.
func TestDel9SearchForAThreadMakesNoTurnLong(t *testing.T) {
	const many = 20 * askedAtOnce
	q, e, turns := manyThreads(t, many, func(i uint64) string { return fmt.Sprintf("h%d.example", i) })
	shots, sums, _, err := q.rings()
	if err != nil {
		t.Fatal(err)
	}
	if sums.Threads != many || len(shots) != 1 || len(shots[0].threads) != many {
		t.Errorf("got %d threads", sums.Threads)
	}
	thr, _, err := q.find("smtp", "H77.example")
	if err != nil || thr == nil || thr.Host != "h77.example" {
		t.Fatalf("got %v, %v", thr, err)
	}
	if thr, _, err := q.find("smtp", "none.example"); thr != nil || err != nil {
		t.Errorf("got %v, %v", thr, err)
	}
	before := turns.Load()
	kicked := make(chan int, 1)
	if err := q.ask(func() { e.kick("@example", func(n int) { kicked <- n }) }); err != nil {
		t.Fatal(err)
	}
	if n := <-kicked; n != many {
		t.Errorf("ETRN reached %d threads, want %d", n, many)
	}
	if n := turns.Load() - before; n < many/askedAtOnce {
		t.Errorf("ETRN looked at %d threads in %d turns", many, n)
	}
	if q.most > askedAtOnce {
		t.Errorf("%d threads in one turn", q.most)
	}
}

// manyThreads is an engine with many messages, each for the host that a function gives, whose
// turns are counted.
func manyThreads(t *testing.T, many int, hostOf func(i uint64) string) (*query, *engine, *atomic.Int64) {
	b, _ := diskBox(t)
	e := newEngine(Config{Conf: b.spool.Conf, Dir: t.TempDir(), Log: slog.New(slog.DiscardHandler)}, b.PO)
	e.now = b.Now
	for i := range uint64(many) {
		host := hostOf(i)
		m := &thread.Message{Number: i + 1, Stamp: b.Now.UnixNano(), Open: 1, Total: 1}
		m.SetName(fmt.Sprint(i + 1))
		e.messages.put(m)
		e.core.Add(m, e.reconfiguration.ring("smtp", host), "smtp", host, []thread.Recipient{thread.NewRecipient(100, "a@b")},
			thread.History{Attempts: 1, Next: b.Now.Add(time.Hour)}, b.Now)
	}
	q := &query{e: e, events: e.events, asking: make(chan struct{}, 1), reading: make(chan struct{}, 1), ended: make(chan struct{})}
	turns := &atomic.Int64{}
	stop := make(chan struct{})
	var engine sync.WaitGroup
	engine.Go(func() {
		var list []func()
		for {
			select {
			case <-e.box.wake:
			case <-stop:
				return
			}
			list = e.box.take(list)
			turns.Add(1)
			for _, fn := range list {
				fn()
			}
		}
	})
	t.Cleanup(func() {
		close(stop)
		engine.Wait()
	})
	return q, e, turns
}
