package smtpserver

import (
	"bufio"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"zmailer/internal/run/assert"
	"zmailer/internal/stage/smtpserver/session"
)

// underClock runs a test with a clock of its own, which jumps when all wait; the client has
// greeted.
func underClock(t *testing.T, minRate int, test func(*testing.T, *client)) {
	office := newOffice(t)
	synctest.Test(t, func(t *testing.T) {
		s := assert.Get(newServer(Config{PostOffice: office.dir, FS: office.disk, Hostname: "mx.example.org", Times: Times{ReadTimeout: 5 * time.Minute, MinRate: minRate}}))(t)
		port := s.newProtocol(session.RoleMX)
		ours, theirs := net.Pipe()
		s.accept(theirs, port)
		p := &client{t, ours, bufio.NewReader(ours)}
		p.expect("220")
		p.say("EHLO c", "250")
		test(t, p)
		ours.Close()
		synctest.Wait()
		assert.NoError(t, s.stop())
	})
}

// slowly sends one byte at a time, each after a pause.
func (p *client) slowly(s string, pause time.Duration) {
	p.t.Helper()
	for _, b := range []byte(s) {
		<-time.After(pause)
		p.send(string(b))
	}
}

// A client with a bad line has the time limit between two bytes of a message, as long as it
// gains time with what it sends.
func TestSlowClientIsServed(t *testing.T) {
	underClock(t, DefaultMinRate, func(t *testing.T, p *client) {
		p.slowly("EHLO c\r\n", 30*time.Second)
		p.expect("250")
		p.begin().data()
		for range 600 { // half an hour at 110 bytes a second
			<-time.After(3 * time.Second)
			p.send(strings.Repeat("x", 328) + "\r\n")
		}
		<-time.After(4*time.Minute + 30*time.Second)
		p.send(strings.Repeat(strings.Repeat("x", 98)+"\r\n", 400))
		<-time.After(4*time.Minute + 30*time.Second)
		p.send(".\r\n")
		p.expect("250 2.0.0")
		p.begin().send("BDAT 4 LAST\r\n")
		p.slowly("slow", time.Minute)
		p.expect("250 2.0.0")
		p.say("QUIT", "221")
	})
	// MINRATE=0: a byte within each time limit is enough.
	underClock(t, 0, func(t *testing.T, p *client) {
		p.begin().data().slowly("slow\r\n.\r\n", 4*time.Minute+40*time.Second)
		p.expect("250 2.0.0")
	})
}

// K15: a client that is silent, or sends a byte a minute, is closed between fifteen sixteenths
// of the limit and all of it; MINRATE holds over the chunks of a message together.
func TestTimeLimitIsKept(t *testing.T) {
	const least, most = 280 * time.Second, 5*time.Minute + time.Second
	for name, tt := range map[string]struct {
		mail    bool
		then    string
		replies []string
		drip    string
	}{
		"silent":                  {false, "", nil, ""},
		"silent in a transaction": {true, "", nil, ""},
		"silent in content":       {true, "DATA\r\n", []string{"354"}, ""},
		"silent in a chunk":       {true, "BDAT 9 LAST\r\n", nil, ""},
		"a dripped command":       {false, "", nil, "NOOP"},
		"dripped content":         {true, "DATA\r\n", []string{"354"}, "NOOP"},
		"a dripped chunk":         {true, "BDAT 99999 LAST\r\n", nil, "NOOP"},
	} {
		t.Run(name, func(t *testing.T) {
			underClock(t, DefaultMinRate, func(t *testing.T, p *client) {
				if tt.mail {
					p.begin()
				}
				if tt.then != "" {
					p.send(tt.then)
				}
				p.expect(tt.replies...)
				start := time.Now()
				p.slowly(tt.drip, time.Minute)
				p.expect("421 4.4.2")
				if d := time.Since(start); d > most || d < least {
					t.Errorf("after %v", d)
				}
				p.end()
			})
		})
	}
	t.Run("dripped chunks", func(t *testing.T) {
		underClock(t, DefaultMinRate, func(t *testing.T, p *client) {
			p.begin()
			start := time.Now()
			p.chunk("x", "")
			p.expect("250")
			<-time.After(4 * time.Minute)
			p.chunk("x", "")
			p.expect("250", "421 4.4.2")
			if d := time.Since(start); d > 6*time.Minute {
				t.Errorf("after %v", d)
			}
			p.end()
		})
	})
}
