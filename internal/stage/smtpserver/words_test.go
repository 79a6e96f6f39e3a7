package smtpserver

import (
	"io"
	"net"
	"syscall"
	"testing"
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
	w := newWire(deaf{here}, &server{Config: Config{ReadTimeout: time.Minute, WriteTimeout: time.Minute}})
	w.out = append(w.out, "250 ok\r\n"...)
	if line, err := w.nextLine(); err != io.EOF {
		t.Errorf("got %q, %v, want the end", line, err)
	}
}

// RFC 3463 §3.2: sender and recipient have codes of their own, and no jokes.
func TestAnswersSayWhatWasTaken(t *testing.T) {
	p := start(t, nil).dial()
	p.say("EHLO c", "250")
	p.say("MAIL FROM:<a@example.net>", "250 2.1.0 sender taken")
	p.say("RCPT TO:<b@mta.example>", "250 2.1.5 recipient taken")
	p.say("RSET", "250")
	p.say("QUIT", "221 2.0.0 closing the connection")
}
