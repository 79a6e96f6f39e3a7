package scheduler

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"zmailer/internal/postoffice"
	"zmailer/internal/stage/scheduler/store/storetest"
	"zmailer/internal/stage/scheduler/thread"
	"zmailer/internal/wire/mailq"
	"zmailer/internal/workspec"
)

// A listing looks at a thousand vertices in a turn of the engine and not at more, however
// many there are.
func TestListingOfManyMessagesMakesNoTurnLong(t *testing.T) {
	const many = 100_000
	q, _, turns := manyThreads(t, many, func(i uint64) string {
		if i%2 == 0 {
			return fmt.Sprintf("h%d.example", i%1000)
		}
		return "big.example"
	})
	rings, _, _, err := q.rings()
	if err != nil {
		t.Fatal(err)
	}
	threads, recipients := 0, 0
	var big threadShot
	for _, r := range rings {
		if err := q.each(r, func(s *threadShot) error {
			threads++
			recipients += s.stats.Recipients
			if s.host == "big.example" {
				big = *s
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	listed := map[string]bool{}
	thr, _, err := q.find("smtp", "big.example")
	if err != nil || thr == nil {
		t.Fatal(err)
	}
	if err := q.messages(thr, func(m *threadMessage) error {
		listed[m.name] = true
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if threads != 501 || recipients != many || big.stats.Recipients != many/2 || len(listed) != many/2 {
		t.Errorf("got %d threads, %d recipients, %d of the big one", threads, recipients, len(listed))
	}
	if q.most > askedAtOnce || turns.Load() < many/askedAtOnce {
		t.Errorf("%d vertices in one turn, in %d turns", q.most, turns.Load())
	}
}

// A client that does not read what it asked for blocks nobody: not deliveries, not other
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
	for range queryClients - 2 {
		_, conn := r.dial()
		deaf = append(deaf, conn)
		// Many answers that nobody reads: far more than the buffers of a socket take.
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
	if s := r.status(c); s.Messages < 50 || s.MostAtOnce > askedAtOnce {
		t.Errorf("got %+v", s)
	}
	_ = last.Close()
	for _, conn := range deaf {
		_ = conn.Close()
	}
	if err := r.stop(); err != nil {
		t.Error(err)
	}
}

// rubbish is what somebody may send who means no good.
func rubbish(random *rand.Rand) []byte {
	verbs := []string{"AUTH", "SHOW", "QUEUE", "THREADS", "THREAD", "KILL", "MSG", "JSON", "MESSAGE", "EVENTS", "ETRN", "QUIT", "smtp", "h", "..", "*", "\x00", "%s", "S1A1", "4711-1"}
	var b bytes.Buffer
	for range random.IntN(30) {
		switch random.IntN(6) {
		case 0:
			b.WriteString(strings.Repeat(string(rune(random.IntN(256))), random.IntN(2*mailq.MaxLine)))
		case 1:
			for range random.IntN(200) {
				b.WriteByte(byte(random.IntN(256)))
			}
		default:
			for range random.IntN(6) {
				b.WriteString(verbs[random.IntN(len(verbs))] + " ")
			}
		}
		if random.IntN(4) > 0 {
			b.WriteByte('\n')
		}
	}
	return b.Bytes()
}

// Whatever is sent to the socket, the scheduler goes on: rubbish, half lines, lines
// without end, from somebody with all rights and from somebody with none.
func TestRubbishOnTheSocketStopsNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t, "PARAM mailqsock = 127.0.0.1:0\n"+scriptConf("", ""), 0, nil)
	r.Queue("s@a.example", storetest.Rcpt{Line: "smtp slow.example defer9@slow.example"})
	r.start()
	r.wait(1, "msg=recorded")
	random := rand.New(rand.NewPCG(1, 2))
	for i := range 300 {
		dial := r.dial
		if i%3 == 0 {
			dial = r.dialTCP
		}
		_, conn := dial()
		send := rubbish(random)
		if i == 0 {
			send = bytes.Repeat([]byte("x"), 10<<20)
		}
		go func() {
			_, _ = conn.Write(send)
			if c, ok := conn.(interface{ CloseWrite() error }); ok {
				_ = c.CloseWrite()
			}
		}()
		if i%2 == 0 {
			_, _ = io.Copy(io.Discard, conn)
		}
		_ = conn.Close()
	}
	r.Queue("s@a.example", storetest.Rcpt{Line: "local joe ok@h"})
	r.wait(1, "msg=delivered", "rcpt=ok@h")
	c, _ := r.dial()
	if s := r.status(c); s.MessagesIn != 2 {
		t.Errorf("got %+v", s)
	}
	if err := r.stop(); err != nil {
		t.Error(err)
	}
}

// FuzzQuerySocket: a live scheduler answers whatever comes, each line with one answer.
func FuzzQuerySocket(f *testing.F) {
	r := newRig(f, scriptConf("", ""), 0, nil)
	r.start()
	f.Add([]byte("SHOW QUEUE SHORT\nKILL MSG 1\nJSON THREADS\nQUIT\n"))
	f.Add([]byte("KILL THREAD smtp \nETRN @\nSHOW THREAD  \n\r\n\xff\xfe"))
	path := filepath.Join(r.dir, postoffice.QuerySocket)
	r.wait(1, "msg=query-served")
	f.Fuzz(func(t *testing.T, b []byte) {
		if bytes.Contains(bytes.ToUpper(b), []byte("EVENTS")) {
			return // that one does not end
		}
		dial := func() net.Conn {
			conn, err := postoffice.DialSocket(t.Context(), path)
			if err == nil {
				err = conn.SetDeadline(time.Now().Add(patience))
			}
			if err != nil {
				t.Fatal(err)
			}
			return conn
		}
		conn := dial()
		sent := make(chan struct{})
		go func() {
			defer close(sent)
			// It may hang up before it has read all.
			_, _ = conn.Write(append(b, "\nQUIT\n"...))
		}()
		_, _ = io.Copy(io.Discard, conn)
		_ = conn.Close()
		<-sent
		conn = dial()
		defer func() { _ = conn.Close() }()
		c, err := mailq.NewClient(conn)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Ask(mailq.Request{Kind: mailq.JSONStatus}, nil); err != nil {
			t.Fatal(err)
		}
	})
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
	if err := r.PO.Queue.List(func(name string) error {
		files++
		for _, g := range r.Parse(name).Groups {
			for _, x := range g.Recipients {
				if x.Tag == workspec.TagToDo {
					open++
				}
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if s.Messages != files || files != messages || s.Recipients != open || open != waits {
		t.Errorf("the socket says %d messages, %d recipients; the files %d, %d", s.Messages, s.Recipients, files, open)
	}
	got := []uint64{s.MessagesIn, s.RecipientsIn, s.MessagesOut, s.RecipientsOut, s.Deliveries, s.Failures, s.Deferrals, s.Attempts}
	if want := []uint64{60, 180, 0, 120, 60, 60, 60, 180}; fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("since the start: got %v, want %v", got, want)
	}
	// In both listings the threads are the hosts that wait.
	if got := askedLines(t, c, mailq.Request{Kind: mailq.Threads2}); len(got) != 5 || s.Threads != 5 {
		t.Errorf("got %d threads, want 5: %q", s.Threads, got)
	}
}

// BenchmarkListing lists a million messages to ten thousand hosts: when the first line
// comes, how long all of it takes, and how long the engine was kept each time: the 99th
// percentile, and at most.
func BenchmarkListing(b *testing.B) {
	x, _ := diskBox(b)
	e := newEngine(Config{Conf: x.spool.Conf, Dir: b.TempDir(), Log: slog.New(slog.DiscardHandler)}, x.PO)
	e.now = x.Now
	for i := range uint64(1_000_000) {
		host := fmt.Sprintf("h%d.example", i%10_000)
		m := &thread.Message{Number: i + 1, Stamp: x.Now.UnixNano(), Open: 1, Total: 1}
		m.SetName(fmt.Sprint(i + 1))
		e.messages.put(m)
		e.core.Add(m, e.reconfiguration.ring("smtp", host), "smtp", host, []thread.Recipient{thread.NewRecipient(100, "a@b")},
			thread.History{Attempts: 1, Next: x.Now.Add(time.Hour)}, x.Now)
	}
	q := &query{e: e, events: e.events, asking: make(chan struct{}, 1), reading: make(chan struct{}, 1), ended: make(chan struct{})}
	var turns []time.Duration
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
			for _, fn := range list {
				begin := time.Now()
				fn()
				turns = append(turns, time.Since(begin))
			}
		}
	})
	first := time.Duration(0)
	for b.Loop() {
		begin, told := time.Now(), false
		rings, _, _, err := q.rings()
		if err != nil {
			b.Fatal(err)
		}
		for _, r := range rings {
			if err := q.each(r, func(*threadShot) error {
				if !told {
					told, first = true, max(first, time.Since(begin))
				}
				return nil
			}); err != nil {
				b.Fatal(err)
			}
		}
	}
	close(stop)
	engine.Wait()
	b.ReportMetric(float64(first.Microseconds()), "µs-to-first-line")
	slices.Sort(turns)
	b.ReportMetric(float64(turns[len(turns)*99/100].Microseconds()), "µs-turn-p99")
	b.ReportMetric(float64(turns[len(turns)-1].Microseconds()), "µs-turn-max")
}
