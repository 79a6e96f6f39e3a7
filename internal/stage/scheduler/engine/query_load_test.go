package engine

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"zmailer/internal/postoffice"
	"zmailer/internal/stage/scheduler/store/storetest"
	"zmailer/internal/wire/mailq"
	"zmailer/internal/workspec"
)

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
	for range queryClients - 2 {
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
