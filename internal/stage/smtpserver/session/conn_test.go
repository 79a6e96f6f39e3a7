package session

import (
	"io"
	"net"
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
