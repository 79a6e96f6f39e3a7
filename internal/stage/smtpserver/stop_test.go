package smtpserver

import (
	"net"
	"strings"
	"testing"
	"time"
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
