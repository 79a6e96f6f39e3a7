package smtpserver

import (
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"
)

// A client that does nothing takes a place only for so long.
func TestCommandsThatDoNothingCountAfterAWhile(t *testing.T) {
	r := start(t, func(c *Config) { c.Limits.Errors = 5 })
	p := r.dial()
	p.say("EHLO c", "250")
	for range 100 - 1 {
		p.say("NOOP", "250")
	}
	for range 5 {
		p.say("RSET", "250")
	}
	p.expect("421 4.7.0")
	p.end()
}

// A fifth of the connections is kept for our users and LIMITSEXEMPT.
func TestUnauthenticatedClientsDoNotTakeAllConnections(t *testing.T) {
	r := start(t, func(c *Config) {
		c.MaxConnections = 5
		c.Limits.Exempt = []netip.Prefix{netip.MustParsePrefix("127.0.0.2/32")}
	})
	for range 4 {
		r.dial()
	}
	late := r.connect()
	late.expect("421 4.3.2")
	late.end()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}
	c, err := d.DialContext(t.Context(), "tcp", r.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	greeting := make([]byte, 3)
	if _, err := io.ReadFull(c, greeting); err != nil || string(greeting) != "220" {
		t.Errorf("got %q, %v", greeting, err)
	}
}

// MINRATE holds over the chunks of a message together.
func TestDrippedChunksAreNoProgress(t *testing.T) {
	underClock(t, func(t *testing.T, p *peer) {
		p.say("EHLO c", "250")
		p.say("MAIL FROM:<a@b>", "250")
		p.say("RCPT TO:<c@mx.example.org>", "250")
		p.send("BDAT 1\r\nx")
		p.expect("250")
		start := time.Now()
		<-time.After(4 * time.Minute)
		p.send("BDAT 1\r\nx")
		p.expect("250")
		p.expect("421 4.4.2")
		if d := time.Since(start); d > 6*time.Minute {
			t.Errorf("after %v", d)
		}
		p.end()
	})
}

// A parameter that is given twice is refused.
func TestParametersStandOnce(t *testing.T) {
	r := start(t, nil)
	p := r.dial()
	p.say("EHLO c", "250")
	p.say("MAIL FROM:<a@b> ENVID=one ENVID=two", "501 5.5.4")
	p.say("MAIL FROM:<a@b>", "250")
	p.say("RCPT TO:<c@d> ORCPT=rfc822;x@y orcpt=rfc822;z@y", "501 5.5.4")
}

// A filter that was restarted sees the next message of a connection that is open.
func TestRestartedFilterSeesTheNextMessage(t *testing.T) {
	f := filterOn(t, &sieve{})
	front, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer front.Close()
	conns := make(chan net.Conn, 10)
	behind := f.address
	go func() {
		for {
			c, err := front.Accept()
			if err != nil {
				return
			}
			back, err := net.Dial("tcp", behind)
			if err != nil {
				return
			}
			conns <- c
			go func() { _, _ = io.Copy(back, c); back.Close() }()
			go func() { _, _ = io.Copy(c, back); c.Close() }()
		}
	}()
	f.address = front.Addr().String()
	r := start(t, with(f))
	p := r.dial()
	p.mail("a@example.net", "b@example.org", plain, "250")
	for len(conns) > 0 {
		(<-conns).Close()
	}
	f.said()
	p.mail("a@example.net", "b@example.org", plain, "250")
	if got := f.said(); !strings.Contains(got, "connect") || !strings.Contains(got, "body hi") {
		t.Errorf("it has seen %q", got)
	}
}
