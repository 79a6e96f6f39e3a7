package smtpserver

import (
	"errors"
	"log/slog"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestConnectionsAreCapped(t *testing.T) {
	r := start(t, func(c *Config) { c.MaxConnections = 2 })
	first, second := r.dial(), r.dial()
	third := r.connect()
	third.expect("421 4.3.2")
	third.end()
	second.say("QUIT", "221")
	second.end()
	eventually(t, "a place for the next", func() bool {
		p := r.connect()
		defer p.Close()
		return strings.HasPrefix(p.reply(), "220")
	})
	first.say("NOOP", "250")
}

// A17: a stop takes no new message, ends idle connections, and lets the running
// transactions finish.
func TestStopLetsTransactionsFinish(t *testing.T) {
	r := start(t, nil)
	idle, mail, data, chunks := r.dial(), r.dial(), r.dial(), r.dial()
	mail.say("EHLO c", "250")
	mail.say("MAIL FROM:<mail@b>", "250")
	data.transaction()
	data.send("Subject: x\r\n\r\nha")
	chunks.say("EHLO c", "250")
	chunks.say("MAIL FROM:<chunks@b>", "250")
	chunks.say("RCPT TO:<c@d>", "250")
	chunks.say("BDAT 4\r\nha", "250")
	r.stop()
	idle.expect("421 4.3.2")
	idle.end()
	if c, err := net.Dial("tcp", r.addr); err == nil {
		c.Close()
		t.Error("a new connection is accepted")
	}
	mail.say("RCPT TO:<c@d>", "250")
	mail.say("DATA", "354")
	mail.say("x\r\n.", "250")
	mail.expect("421 4.3.2")
	mail.end()
	data.say("lf\r\n.", "250")
	data.expect("421 4.3.2")
	data.end()
	chunks.send("BDAT 2 LAST\r\nlf")
	chunks.expect("250", "421 4.3.2")
	if err := r.ended(); err != nil {
		t.Error(err)
	}
	if got := len(r.names("router")); got != 3 {
		t.Errorf("%d messages, want 3", got)
	}
}

// A17: the deadline.
func TestStopCutsWhatDoesNotFinish(t *testing.T) {
	r := start(t, func(c *Config) { c.StopTimeout = 20 * time.Millisecond })
	data, chunks := r.dial(), r.dial()
	data.transaction()
	data.send("half")
	chunks.say("EHLO c", "250")
	chunks.say("MAIL FROM:<a@b>", "250")
	chunks.say("RCPT TO:<c@d>", "250")
	chunks.say("BDAT 4\r\nha", "250")
	r.stop()
	if err := r.ended(); err != nil {
		t.Error(err)
	}
	r.nothing()
	if !strings.Contains(r.log.String(), "msg=cut") {
		t.Error("the cut is not logged")
	}
}

// shortListener has no descriptors a few times, then none at all are left to accept.
type shortListener struct {
	net.Listener
	errs chan error
}

func (l *shortListener) Accept() (net.Conn, error) { return nil, <-l.errs }
func (l *shortListener) Close() error              { return nil }
func (l *shortListener) Addr() net.Addr            { return &net.TCPAddr{} }

func TestShortageOfDescriptorsIsSaidOnce(t *testing.T) {
	errs := make(chan error, 4)
	for _, e := range []unix.Errno{unix.EMFILE, unix.ENFILE, unix.ECONNABORTED, unix.EBADF} {
		errs <- &net.OpError{Op: "accept", Err: os.NewSyscallError("accept4", e)}
	}
	log := &lockedBuffer{}
	s := &server{Config: Config{Log: slog.New(slog.NewTextHandler(log, nil))}}
	l := &listener{Listener: &shortListener{errs: errs}, srv: s, done: make(chan struct{})}
	if _, err := l.Accept(); !errors.Is(err, unix.EBADF) {
		t.Errorf("got %v, want the error that does not pass", err)
	}
	if got := strings.Count(log.String(), "accept-trouble"); got != 1 {
		t.Errorf("said %d times:\n%s", got, log.String())
	}
	errs <- &net.OpError{Op: "accept", Err: os.NewSyscallError("accept4", unix.EMFILE)}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("got %v from a closed listener", err)
	}
}
