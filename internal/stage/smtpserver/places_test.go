package smtpserver

import (
	"bufio"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"zmailer/internal/disk/faultfs"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/assert"
	"zmailer/internal/run/logtest"
	"zmailer/internal/stage/smtpserver/content/checks/checkstest"
	"zmailer/internal/stage/smtpserver/policy/limits"
	"zmailer/internal/stage/smtpserver/session"
)

// crowd is a server with 40 connections, 32 of them public, under a clock of its own.
type crowd struct {
	t *testing.T
	s *server
}

// from is a connection with an address.
type from struct {
	net.Conn
	addr net.Addr
}

func (c from) RemoteAddr() net.Addr { return c.addr }

// ours is in LIMITSEXEMPT.
const ours = "192.0.2.1"

func crowded(t *testing.T, test func(c *crowd)) {
	t.Helper()
	office := newOffice(t)
	users := accounts(t)
	synctest.Test(t, func(t *testing.T) {
		config := Config{PostOffice: office.dir, FS: office.disk, Hostname: "mx.example.org",
			Times: Times{ReadTimeout: 5 * time.Minute, MinRate: DefaultMinRate}}
		config.Limits.MaxConnections = 40
		config.Limits.Exempt = []netip.Prefix{netip.MustParsePrefix(ours + "/32")}
		config.Users = UsersConfig{Source: "file:" + users, Plaintext: true}
		s := assert.Get(newServer(config))(t)
		defer s.cancel()
		test(&crowd{t, s})
		synctest.Wait()
		s.mu.Lock()
		for c := range s.connections {
			c.Cut()
		}
		s.mu.Unlock()
		synctest.Wait()
		assert.Equal(t, s.places.public+s.places.evicted+len(s.places.held), 0)
		assert.NoError(t, s.stop())
	})
}

// connect connects and reads nothing.
func (c *crowd) connect(addr string, role session.Role) *client {
	c.t.Helper()
	here, there := net.Pipe()
	c.t.Cleanup(func() { here.Close() })
	a := net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(addr), 1025))
	p := &client{c.t, here, bufio.NewReader(here)}
	go c.s.accept(from{there, a}, role)
	synctest.Wait()
	return p
}

// greeted connects and is greeted.
func (c *crowd) greeted(addr string, role session.Role) *client {
	c.t.Helper()
	p := c.connect(addr, role)
	p.expect("220")
	p.say("EHLO c", "250")
	return p
}

// fill takes so many public places, eight of each address.
func (c *crowd) fill(n int) (list []*client) {
	c.t.Helper()
	for i := range n {
		list = append(list, c.greeted(fmt.Sprintf("198.51.100.%d", 1+i/8), session.RoleMX))
	}
	return list
}

// Atk4: above three quarters of the public places a client without progress has 10 seconds,
// also one that is waited for already; NOOP is no progress.
func TestAtk4TimeLimitsAreShortUnderPressure(t *testing.T) {
	crowded(t, func(c *crowd) {
		early := c.fill(24)
		mail := early[0].from("a@example.net")
		data := early[1].begin().data()
		noop, silent := early[2], early[3]
		own := c.greeted(ours, session.RoleMX)
		<-time.After(3 * time.Minute) // within the usual limit
		noop.say("NOOP", "250")
		for _, p := range early[4:] {
			p.Close()
		}
		synctest.Wait()
		for i := range 21 {
			c.greeted(fmt.Sprintf("203.0.113.%d", i+1), session.RoleMX)
		}
		// The 25th makes the places scarce.
		start := time.Now()
		noop.expect("421 4.4.2")
		silent.expect("421 4.4.2")
		assert.Equal(t, time.Since(start), 0)
		<-time.After(20 * time.Second)
		data.send(strings.Repeat(strings.Repeat("x", 98)+"\r\n", 60))
		mail.expect("421 4.4.2")
		<-time.After(15 * time.Second)
		data.say(".", "250") // it is faster than MINRATE
		own.say("NOOP", "250")
	})
}

// Atk4: NOOP does not lengthen the short limit.
func TestAtk4NoopIsNoProgressUnderPressure(t *testing.T) {
	crowded(t, func(c *crowd) {
		p := c.fill(28)[27]
		start := time.Now()
		for range 4 {
			<-time.After(2 * time.Second)
			p.say("NOOP", "250")
		}
		p.end("421 4.4.2")
		assert.Equal(t, time.Since(start).Round(time.Second), 10*time.Second)
	})
}

// Atk4: where all public places are taken a new client gets that of a connection that was
// idle, or that of an address with many connections.
func TestAtk4NewClientGetsThePlaceOfAnIdleOne(t *testing.T) {
	for name, tt := range map[string]struct {
		do   func(all []*client) // before the new client comes
		want int                 // the evicted one
		text string
	}{
		"the idlest": {func(all []*client) {
			<-time.After(4 * time.Second)
			for i, p := range all {
				if i != 9 {
					p.from("a@example.net").say("RSET", "250")
				}
			}
		}, 9, ""},
		"one of the address with the most": {func(all []*client) {
			for i, p := range all {
				if i != 7 {
					p.from("a@example.net")
				}
			}
		}, 7, ""},
		"a transaction": {func(all []*client) {
			for i, p := range all {
				if i != 5 {
					p.from("a@example.net")
				}
			}
			all[5].begin().data().send("half")
			<-time.After(time.Second)
			for i, p := range all {
				if i != 5 {
					p.to(toUs)
				}
			}
		}, 5, ""},
	} {
		t.Run(name, func(t *testing.T) {
			crowded(t, func(c *crowd) {
				all := c.fill(32)
				tt.do(all)
				var reading sync.WaitGroup
				reading.Go(func() { all[tt.want].end("421 4.3.2") })
				p := c.greeted("203.0.113.9", session.RoleMX)
				reading.Wait()
				p.begin().content(plain, "250")
				for i, p := range all {
					if i != tt.want {
						p.say("NOOP", "250")
					}
				}
			})
		})
	}
	t.Run("not one of the same address", func(t *testing.T) {
		crowded(t, func(c *crowd) {
			c.fill(32)
			p := c.connect("198.51.100.1", session.RoleMX)
			p.end("421 4.3.2")
		})
	})
}

// Atk4: a client that reads nothing keeps no place.
func TestAtk4ClientThatReadsNothingIsEvicted(t *testing.T) {
	crowded(t, func(c *crowd) {
		var deaf []*client
		for i := range 32 {
			deaf = append(deaf, c.connect(fmt.Sprintf("198.51.100.%d", 1+i/8), session.RoleMX))
		}
		<-time.After(5 * time.Second)
		for i := range 8 {
			c.greeted(fmt.Sprintf("203.0.113.%d", i), session.RoleMX).begin().content(plain, "250")
		}
		<-time.After(2 * time.Second)
		synctest.Wait()
		assert.Equal(t, c.s.places.evicted, 0)
		assert.Equal(t, len(c.s.connections), len(deaf))
	})
}

// Atk4: clients on ports for submission are public until they have authenticated; LIMITSEXEMPT
// and users have the rest on each port.
func TestAtk4ReserveIsForOwnClientsOnEachPort(t *testing.T) {
	crowded(t, func(c *crowd) {
		for i := range 32 {
			c.connect(fmt.Sprintf("198.51.100.%d", 1+i/8), session.RoleSubmission).expect("220")
		}
		c.connect("198.51.100.1", session.RoleSubmission).end("421 4.3.2")
		assert.Equal(t, c.s.places.public, 32)
		c.greeted(ours, session.RoleMX)
		c.greeted(ours, session.RoleSubmission)
		for i := range 6 {
			// Public for now: it takes the place of another.
			p := c.greeted(fmt.Sprintf("203.0.113.%d", i), session.RoleSubmission)
			p.say("AUTH PLAIN "+b64("\x00jane\x00secret"), "235")
			synctest.Wait()
			assert.Equal(t, c.s.places.public, 31)
			c.connect("198.51.100.1", session.RoleMX).expect("220") // it is free
			<-time.After(time.Second)
			defer p.say("NOOP", "250")
		}
		// All are taken, also the reserve: our users' are more.
		c.greeted(ours, session.RoleMX)
		<-time.After(4 * time.Minute)
	})
}

// Atk5: the file of a message that cannot be stored is removed before its client has sent all
// of it; free space is measured while it comes.
func TestAtk5RefusedContentLeavesTheDiskAtOnce(t *testing.T) {
	_, dns := checkstest.Serve(t)
	for how, change := range map[string]func(*Config){"written as it comes": func(*Config) {}, "held for checks": allChecks(dns)} {
		for name, want := range map[string]string{"disk full": "452 4.3.1", "little space": "452 4.3.1", "too large": "552 5.3.4"} {
			t.Run(how+", "+name, func(t *testing.T) {
				var free atomic.Int64
				free.Store(100 << 20)
				r := start(t, func(c *Config) {
					change(c)
					c.Limits.MaxSize, c.Limits.MinFree, c.Limits.Now = 200<<20, 1<<20, minutes()
					c.Limits.Measure = func(string) (limits.Room, error) { return limits.Room{Free: free.Load(), Files: 1000}, nil }
					if name == "too large" {
						c.Limits.MaxSize = 1 << 20
					}
				})
				part := strings.Repeat("0123456789abcde\r\n", 40_000)
				p := r.greeted().begin().data()
				p.send(part)
				logtest.Eventually(t, "a file", func() bool { return len(r.names(postoffice.Public)) == 1 })
				switch name {
				case "disk full":
					r.disk.Fail(faultfs.Write, "*/*", unix.ENOSPC, faultfs.Always)
				case "little space":
					free.Store(1<<20 - 1)
				}
				p.send(part)
				logtest.Eventually(t, "no file", func() bool { return len(r.names(postoffice.Public)) == 0 })
				p.send(part)
				p.say(".", want)
				r.nothing()
			})
		}
	}
}

// Atk5: when there is too little space for strangers, the largest of their unfinished messages
// goes, however slowly it is sent, one for each that finds none. Our own clients have a reserve
// and keep what they have begun.
func TestAtk5SlowMessagesLeaveTheDiskWhenItIsNearlyFull(t *testing.T) {
	var free atomic.Int64
	free.Store(100 << 20)
	r := start(t, func(c *Config) {
		c.Limits.MinFree, c.Limits.Now = 1<<20, minutes()
		c.Limits.Measure = func(string) (limits.Room, error) {
			return limits.Room{Size: 200 << 20, Free: free.Load(), Files: 1000}, nil
		}
		c.Limits.Exempt = []netip.Prefix{netip.MustParsePrefix("127.0.0.2/32")}
	})
	ownClient := func() *client {
		p := r.connectFrom(&net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}, r.addrs[0])
		p.expect("220")
		p.say("EHLO c", "250")
		return p
	}
	line := "0123456789abcde\r\n"
	content := func(p *client, lines int) *client {
		p.data().send(strings.Repeat(line, lines))
		return p
	}
	small, large, own := content(r.greeted().begin(), 10_000), content(r.greeted().begin(), 20_000), content(ownClient().begin(), 40_000)
	tiny := content(r.greeted().begin(), 40)
	files := func(n, large int) {
		t.Helper()
		logtest.Eventually(t, fmt.Sprint(n, " files, ", large, " of them large"), func() bool {
			names, many := r.names(postoffice.Public), 0
			for _, name := range names {
				if info, err := os.Stat(filepath.Join(r.dir, postoffice.Public, name)); err == nil && info.Size() > 100_000 {
					many++
				}
			}
			return len(names) == n && many == large
		})
	}
	files(4, 3)
	free.Store(5 << 20) // a twentieth of 200 MB are the reserve
	stranger := r.greeted()
	stranger.say("MAIL FROM:<a@b>", "452 4.3.1")
	large.end("421 4.3.2")
	files(3, 2)
	stranger.say("MAIL FROM:<a@b>", "452 4.3.1")
	small.end("421 4.3.2")
	files(2, 1)
	stranger.say("MAIL FROM:<a@b>", "452 4.3.1")
	ownClient().begin().content(plain, "250 2.0.0")
	own.send(strings.Repeat(line, 10_000))
	own.say(".", "250 2.0.0")
	tiny.say(".", "250 2.0.0")
	free.Store(100 << 20)
	stranger.begin().content(plain, "250 2.0.0")
	r.log.Expect(t, 2, "msg=evicted")
}
