package session

import (
	"bytes"
	"io"
	"log/slog"
	"net"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// deaf is a connection that cannot be written to.
type deaf struct{ net.Conn }

func (deaf) Write([]byte) (int, error) { return 0, syscall.EIO }

// A reply that did not go out ends the connection: its client would wait for it, and we
// for him.
func TestReplyThatIsLostEndsTheConnection(t *testing.T) {
	here, there := net.Pipe()
	defer here.Close()
	defer there.Close()
	w := New(Config{ReadTimeout: time.Minute, WriteTimeout: time.Minute}).NewConn(deaf{here}, nil)
	w.out = append(w.out, "250 ok\r\n"...)
	if line, err := w.readLine(maxCommandLine); err != io.EOF {
		t.Errorf("got %q, %v, want the end", line, err)
	}
}

// What filters or the disk take is not the client's fault: only the time counts in which
// it is waited for.
func TestOurOwnDelayIsNotTheClients(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		defer ours.Close()
		w := New(Config{ReadTimeout: 5 * time.Minute, MinRate: 100}).NewConn(theirs, nil)
		defer theirs.Close()
		w.inLine = true
		for i := range 6 {
			go func() {
				<-time.After(10 * time.Second)
				_, _ = ours.Write(make([]byte, 1000))
			}()
			if err := w.more(); err != nil {
				t.Fatalf("piece %d: %v", i, err)
			}
			w.skip(len(w.peek()))
			<-time.After(10 * time.Minute) // what becomes of it
		}
		if err := w.more(); err == nil {
			t.Error("silence has no end")
		}
	})
}

// panicking is a Handler with defects.
type panicking struct{ Handler }

func (panicking) Hello(string)                      {}
func (panicking) Extensions(list []string) []string { return list }
func (panicking) Mail(*Mail) *Reply                 { panic("MAIL") }
func (panicking) Close()                            { panic("the end") }

// A panic ends the session of one client, with 421, and is logged.
func TestPanicEndsOneSession(t *testing.T) {
	ours, theirs := net.Pipe()
	var log bytes.Buffer
	closed := make(chan bool)
	server := New(Config{Hostname: "mta.example", ReadTimeout: time.Minute, WriteTimeout: time.Minute,
		Log: slog.New(slog.NewTextHandler(&log, nil)), Open: func(Client, Peer) Handler { return panicking{} }})
	go server.NewConn(theirs, func() { close(closed) }).Serve()
	go func() { _, _ = io.WriteString(ours, "EHLO c\r\nMAIL FROM:<a@b.example>\r\nNOOP\r\n") }()
	text, err := io.ReadAll(ours)
	if err != nil {
		t.Fatal(err)
	}
	<-closed
	lines := strings.Split(strings.TrimSuffix(string(text), "\r\n"), "\r\n")
	if last := lines[len(lines)-1]; !strings.HasPrefix(last, "421 4.3.0 ") || strings.Count(string(text), "421 ") > 2 {
		t.Errorf("replies %q", lines)
	}
	if n := strings.Count(log.String(), "smtp-trouble"); n != 2 {
		t.Errorf("%d lines of the log:\n%s", n, &log)
	}
}
