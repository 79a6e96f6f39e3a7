package smtpserver

import (
	"bufio"
	"net"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"zmailer/internal/run/assert"
	"zmailer/internal/stage/smtpserver/session"
)

// underClock runs a test with a clock of its own, which jumps when all wait; the client is no
// trusted one and has greeted.
func underClock(t *testing.T, minRate int, test func(*testing.T, *client)) {
	clientUnderClock(t, minRate, "198.51.100.1", session.RoleMX, test)
}

// clientUnderClock is underClock for a client of an address on a port.
func clientUnderClock(t *testing.T, minRate int, addr string, role session.Role, test func(*testing.T, *client)) {
	office, users := newOffice(t), accounts(t)
	synctest.Test(t, func(t *testing.T) {
		config := Config{PostOffice: office.dir, FS: office.disk, Hostname: "mx.example.org", Times: Times{ReadTimeout: 5 * time.Minute, MinRate: minRate}}
		config.Limits.Exempt = []netip.Prefix{netip.MustParsePrefix(ours + "/32")}
		config.Users = UsersConfig{Source: "file:" + users, Plaintext: true}
		config.XClientNets = config.Limits.Exempt
		s := assert.Get(newServer(config))(t)
		defer s.cancel()
		ours, theirs := net.Pipe()
		s.accept(from{theirs, net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(addr), 1025))}, role)
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

// Net1: MINRATE and the time for a whole command hold for strangers. A client of LIMITSEXEMPT
// and an authenticated one end only when they are silent.
func TestNet1TrustedClientMayBeSlow(t *testing.T) {
	for name, tt := range map[string]struct {
		addr string
		role session.Role
		then [][2]string // lines and replies
		slow bool
	}{
		"in LIMITSEXEMPT":       {ours, session.RoleMX, nil, true},
		"a stranger":            {"198.51.100.1", session.RoleMX, nil, false},
		"authenticated":         {"198.51.100.1", session.RoleSubmission, [][2]string{{"AUTH PLAIN " + b64("\x00jane\x00secret"), "235"}}, true},
		"with a wrong password": {"198.51.100.1", session.RoleSubmission, [][2]string{{"AUTH PLAIN " + b64("\x00jane\x00wrong"), "535"}}, false},
		"named by XCLIENT":      {ours, session.RoleMX, [][2]string{{"XCLIENT ADDR=203.0.113.1", "220"}, {"EHLO c", "250"}}, false},
		"a user of XCLIENT":     {ours, session.RoleMX, [][2]string{{"XCLIENT ADDR=203.0.113.1 LOGIN=ann", "220"}, {"EHLO c", "250"}}, true},
		"after a user of XCLIENT": {ours, session.RoleMX, [][2]string{{"XCLIENT ADDR=203.0.113.1 LOGIN=ann", "220"},
			{"XCLIENT ADDR=203.0.113.1", "220"}, {"EHLO c", "250"}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			clientUnderClock(t, DefaultMinRate, tt.addr, tt.role, func(t *testing.T, p *client) {
				for _, step := range tt.then {
					p.say(step[0], step[1])
				}
				if !tt.slow {
					p.slowly("NOOP", time.Minute)
					p.end("421 4.4.2")
					return
				}
				p.slowly("NOOP\r\n", 4*time.Minute)
				p.expect("250")
				p.begin().data().slowly("slow\r\n.\r\n", 4*time.Minute)
				p.expect("250 2.0.0")
				start := time.Now()
				p.end("421 4.4.2")
				if d := time.Since(start); d < 280*time.Second || d > 5*time.Minute+time.Second {
					t.Errorf("a silent client was closed after %v", d)
				}
			})
		})
	}
}
