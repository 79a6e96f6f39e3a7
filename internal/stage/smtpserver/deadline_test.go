package smtpserver

import (
	"bufio"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"zmailer/internal/disk/durable"
	"zmailer/internal/postoffice"
	"zmailer/internal/stage/smtpserver/session"
)

// underClock runs a test with a clock of its own, which jumps when all wait.
func underClock(t *testing.T, test func(*testing.T, *peer)) {
	underClockWith(t, nil, test)
}

func underClockWith(t *testing.T, change func(*Config), test func(*testing.T, *peer)) {
	dir := t.TempDir()
	disk, err := durable.NewOS(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer disk.Close()
	if err := postoffice.Init(disk); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		c := Config{PostOffice: dir, FS: disk, Hostname: "mx.example.org", ReadTimeout: 5 * time.Minute, MinRate: DefaultMinRate}
		if change != nil {
			change(&c)
		}
		s, err := newServer(c)
		if err != nil {
			t.Fatal(err)
		}
		port := s.newProtocol(session.RoleMX)
		done := make(chan struct{})
		go func() { port.Run(); close(done) }()
		ours, theirs := net.Pipe()
		s.accept(theirs, port)
		p := &peer{t, ours, bufio.NewReader(ours)}
		p.expect("220")
		test(t, p)
		ours.Close()
		port.Close()
		<-done
		synctest.Wait()
		if err := s.stop(); err != nil {
			t.Error(err)
		}
	})
}

// slowly sends one byte at a time, each after a pause.
func (p *peer) slowly(s string, pause time.Duration) {
	p.t.Helper()
	for _, b := range []byte(s) {
		<-time.After(pause)
		p.send(string(b))
	}
}

// A client whose line is bad is no silent one: it has the time limit between two bytes
// of a message, as long as it wins time with what it sends.
func TestSlowClientIsHeardOut(t *testing.T) {
	underClock(t, func(t *testing.T, p *peer) {
		p.slowly("EHLO c\r\n", 30*time.Second)
		p.expect("250")
		p.say("MAIL FROM:<a@b>", "250")
		p.say("RCPT TO:<c@mx.example.org>", "250")
		p.say("DATA", "354")
		for range 600 { // half an hour at 110 bytes a second
			<-time.After(3 * time.Second)
			p.send(strings.Repeat("x", 328) + "\r\n")
		}
		<-time.After(4*time.Minute + 30*time.Second)
		p.send(strings.Repeat(strings.Repeat("x", 98)+"\r\n", 400))
		<-time.After(4*time.Minute + 30*time.Second)
		p.send(".\r\n")
		p.expect("250 2.0.0")
		p.say("MAIL FROM:<a@b>", "250")
		p.say("RCPT TO:<c@mx.example.org>", "250")
		p.send("BDAT 4 LAST\r\n")
		p.slowly("slow", time.Minute)
		p.expect("250 2.0.0")
		p.say("QUIT", "221")
	})
}

// K15: a byte a minute keeps no place taken, neither of a command nor of a message.
func TestDrippedBytesAreNoProgress(t *testing.T) {
	for name, said := range map[string]string{"command": "", "content": "DATA\r\n", "chunk": "BDAT 99999 LAST\r\n"} {
		t.Run(name, func(t *testing.T) {
			underClock(t, func(t *testing.T, p *peer) {
				p.say("EHLO c", "250")
				if said != "" {
					p.say("MAIL FROM:<a@b>", "250")
					p.say("RCPT TO:<c@mx.example.org>", "250")
					p.send(said)
					if name == "content" {
						p.expect("354")
					}
				}
				start := time.Now()
				p.slowly("NOOP", time.Minute)
				<-time.After(50 * time.Second)
				if got := p.expect("421 4.4.2"); time.Since(start) > 5*time.Minute+time.Second {
					t.Errorf("%q after %v", got, time.Since(start))
				}
				p.end()
			})
		})
	}
}

// MINRATE=0: a byte within each time limit is enough.
func TestDrippedBytesMayBeAllowed(t *testing.T) {
	underClockWith(t, func(c *Config) { c.MinRate = 0 }, func(t *testing.T, p *peer) {
		p.say("EHLO c", "250")
		p.say("MAIL FROM:<a@b>", "250")
		p.say("RCPT TO:<c@mx.example.org>", "250")
		p.say("DATA", "354")
		p.slowly("slow\r\n.\r\n", 4*time.Minute+40*time.Second)
		p.expect("250 2.0.0")
	})
}

// K15: between fifteen sixteenths of the limit and all of it.
func TestTimeLimitIsKept(t *testing.T) {
	for name, said := range map[string]string{
		"command": "", "transaction": "MAIL FROM:<a@b>", "content": "DATA", "chunk": "BDAT 9 LAST",
	} {
		t.Run(name, func(t *testing.T) {
			underClock(t, func(t *testing.T, p *peer) {
				p.say("EHLO c", "250")
				if name == "content" || name == "chunk" {
					p.say("MAIL FROM:<a@b>", "250")
					p.say("RCPT TO:<c@mx.example.org>", "250")
				}
				switch {
				case name == "content":
					p.say(said, "354")
				case name == "chunk":
					p.send(said + "\r\n")
				case said != "":
					p.say(said, "250")
				}
				start := time.Now()
				got := p.reply()
				if d := time.Since(start); !strings.HasPrefix(got, "421 4.4.2") || d > 5*time.Minute || d < 280*time.Second {
					t.Errorf("%q after %v", got, d)
				}
				p.end()
			})
		})
	}
}
