package smtpserver

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"zmailer/internal/mail/envelope"
	"zmailer/internal/run/assert"
	"zmailer/internal/run/logtest"
	"zmailer/internal/stage/smtpserver/policy/limits"
)

// M46: connections at once, of one address and in all. When one ends there is room again.
func TestConnectionsAreLimited(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*Config)
		want   string
	}{
		"of one address": {func(c *Config) { c.Limits.PerAddress = 2 }, "421 4.7.0"},
		"in all":         {func(c *Config) { c.Limits.MaxConnections = 2 }, "421 4.3.2"},
	} {
		t.Run(name, func(t *testing.T) {
			r := start(t, tt.change)
			first, second := r.dial(), r.dial()
			r.connect(0).end(tt.want)
			first.say("QUIT", "221")
			first.end()
			logtest.Eventually(t, "room for another", func() bool {
				p := r.connect(0)
				defer p.Close()
				return strings.HasPrefix(p.reply(), "220")
			})
			second.say("NOOP", "250")
		})
	}
}

// A fifth of the connections is for our users and LIMITSEXEMPT.
func TestUnauthenticatedClientsDoNotTakeAllConnections(t *testing.T) {
	r := start(t, func(c *Config) {
		c.Limits.MaxConnections = 5
		c.Limits.Exempt = []netip.Prefix{netip.MustParsePrefix("127.0.0.2/32")}
	})
	for range 4 {
		r.dial()
	}
	r.connect(0).end("421 4.3.2")
	r.connectFrom(&net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}, r.addrs[0]).expect("220")
}

// M46.
func TestRatesAreAnsweredTemporarily(t *testing.T) {
	rate := limits.Rate{Count: 2, Per: time.Hour}
	t.Run("connections", func(t *testing.T) {
		r := start(t, func(c *Config) { c.Limits.Connections = rate })
		for range 2 {
			r.dial().say("QUIT", "221")
		}
		r.connect(0).end("421 4.7.0")
	})
	t.Run("messages", func(t *testing.T) {
		r := start(t, func(c *Config) { c.Limits.Messages = rate })
		p := r.greeted()
		for range 2 {
			p.begin().content(plain, "250")
		}
		p.say("MAIL FROM:<a@b>", "450 4.7.1")
		p.say("RCPT TO:<c@d>", "503")
	})
	t.Run("recipients", func(t *testing.T) {
		r := start(t, func(c *Config) { c.Limits.Recipients = rate })
		p := r.greeted().from("a@b").to("one@d", "two@d")
		p.say("RCPT TO:<three@d>", "450 4.7.1")
		p.content(plain, "250")
		r.only("to <one@d>\nto <two@d>\nenv-end")
	})
	t.Run("a sender's recipients, in any spelling of its domain", func(t *testing.T) {
		r := start(t, func(c *Config) { c.Limits.SenderRecipients = rate })
		r.greeted().from("A@B.example").to("one@d", "two@d").content(plain, "250")
		p := r.greeted().from("a@b.example")
		p.say("RCPT TO:<three@d>", "450 4.7.1")
		p.say("RSET", "250")
		p.from("").to("three@d").content(plain, "250") // reports have no sender
	})
	t.Run("a user and a domain with rates of their own", func(t *testing.T) {
		dir := files(t, map[string]string{"rates": "user=Jane messages=1/1h # few\nfrom=.b.example rcpts=1/1h\nfrom=free@b.example off\n"})
		r := submission(t, func(c *Config) {
			c.Access.Dir, c.Access.RateLimits = dir, []string{"rates"}
			c.Limits.Messages = limits.Rate{Count: 9, Per: time.Hour}
		})
		p := r.greeted()
		p.say("AUTH PLAIN "+b64("\x00jane\x00secret"), "235")
		p.from("x@sub.b.example").to("one@d")
		p.say("RCPT TO:<two@d>", "450 4.7.1")
		p.say("RSET", "250")
		p.say("MAIL FROM:<free@b.example>", "450 4.7.1")
	})
	t.Run("a table that cannot be asked", func(t *testing.T) {
		r := start(t, func(c *Config) { c.Access.RateLimits = []string{"exec:/bin/false"} })
		r.greeted().say("MAIL FROM:<a@b>", "451 4.3.0")
	})
	t.Run("a user's messages", func(t *testing.T) {
		r := submission(t, func(c *Config) { c.Limits.Messages = limits.Rate{Count: 1, Per: time.Hour} })
		for _, want := range []string{"250", "450 4.7.1"} {
			p := r.greeted()
			p.say("AUTH PLAIN "+b64("\x00jane\x00secret"), "235")
			p.say("MAIL FROM:<a@b>", want)
		}
	})
}

// M46: recipients of one message. Atk6: an unauthenticated client from a foreign network may
// name fewer, and sends the message to those (RFC 5321 section 4.5.3.1.8).
func TestAtk6RecipientsOfAMessageAreLimited(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*Config)
		most   int
	}{
		"a foreign network": {func(*Config) {}, 100},
		"RELAYNETS":         {func(c *Config) { c.Access.RelayNets = loopback }, 120},
		"LIMITSEXEMPT":      {func(c *Config) { c.Limits.Exempt = loopback }, 120},
	} {
		t.Run(name, func(t *testing.T) {
			r := start(t, func(c *Config) {
				c.Limits.MaxRecipients, c.Limits.MaxRecipientsUnauth, c.Access.RelayNets = 120, 100, nil
				tt.change(c)
			})
			p := r.greeted().from("a@b.example")
			for i := range tt.most {
				p.to("r" + strconv.Itoa(i) + "@localhost")
			}
			p.say("RCPT TO:<more@localhost>", "452 4.5.3")
			p.content(plain, "250")
			assert.Equal(t, strings.Count(r.only(), "\nto "), tt.most)
		})
	}
}

// Atk2: a router can read what is answered with 250, however much its recipients take: the
// one with which the envelope would be too large gets 452.
func TestAtk2AcceptedEnvelopeCanBeRead(t *testing.T) {
	t.Parallel()
	r := start(t, func(c *Config) { c.Limits.MaxRecipients = 0 })
	p := r.greeted().from("a@b")
	const batch = 500
	original := strings.Repeat("o", 470) + "@example.com" // RFC 3461 section 4.2 allows 500 octets
	taken, full := 0, false
	for n := 0; !full && n < 100*batch; n += batch {
		var lines strings.Builder
		for i := range batch {
			fmt.Fprintf(&lines, "RCPT TO:<r%d.%s@example.com> NOTIFY=FAILURE ORCPT=rfc822;%s\r\n", n+i, strings.Repeat("x", 50), original)
		}
		p.send(lines.String())
		for range batch {
			switch said := p.reply(); {
			case strings.HasPrefix(said, "250") && !full:
				taken++
			case strings.HasPrefix(said, "452 4.5.3"):
				full = true
			default:
				t.Fatalf("recipient %d, full %v: %q", taken, full, said)
			}
		}
	}
	if !full || taken < 10_000 {
		t.Fatalf("%d recipients were taken, and the limit was met: %v", taken, full)
	}
	p.content(plain, "250")
	m, err := envelope.Read(strings.NewReader(r.only()))
	if err != nil || len(m.Recipients) != taken {
		t.Fatalf("a router reads %+.200v, %v; want %d recipients", m, err, taken)
	}
}

// M46, Net1: errors of one connection.
func TestManyErrorsEndTheConnection(t *testing.T) {
	limited := func(t *testing.T) *client {
		return start(t, func(c *Config) { c.Limits.Errors = 5 }).greeted()
	}
	t.Run("at the limit", func(t *testing.T) {
		p := limited(t)
		for range 5 {
			p.say("MAIL FROM:<a@b", "501")
		}
		p.end("421 4.7.0")
	})
	t.Run("sent all at once", func(t *testing.T) {
		p := limited(t)
		p.send(strings.Repeat("RCPT TO:<a@b>\r\n", 2000))
		n := 0
		for got := ""; !strings.HasPrefix(got, "421 4.7.0"); n++ {
			got = p.reply()
		}
		if n > 1500 {
			t.Errorf("%d errors were answered", n)
		}
		p.end()
	})
	t.Run("a message begins the count anew", func(t *testing.T) {
		p := limited(t)
		for range 4 {
			p.say("MAIL FROM:<a@b", "501")
			p.say("MAIL FROM:<a@b", "501")
			p.begin().content(plain, "250")
		}
	})
	t.Run("commands that do nothing count after a hundred", func(t *testing.T) {
		p := limited(t)
		for range 100 - 1 {
			p.say("NOOP", "250")
		}
		for range 5 {
			p.say("RSET", "250")
		}
		p.end("421 4.7.0")
	})
}

// A client that is cut comes again with the same list in the same order: those behind the
// cut would never get the message.
func TestRefusedRecipientsCostTheOthersNothing(t *testing.T) {
	t.Run("above MAXRCPT", func(t *testing.T) {
		r := start(t, func(c *Config) { c.Limits.Errors, c.Limits.MaxRecipients = 5, 2 })
		p := r.greeted().from("a@b").to("one@d", "two@d")
		for range 20 {
			p.say("RCPT TO:<three@d>", "452 4.5.3")
		}
		p.content(plain, "250")
		r.only("to <one@d>\nto <two@d>\nenv-end")
	})
	t.Run("deferred before any is taken", func(t *testing.T) {
		r := ruled(t, map[string]string{"access": "defer to=later@example.org\n"}, func(c *Config) { c.Limits.Errors = 5 })
		p := r.as(outsider, "").from("a@example.net")
		for range 20 {
			p.say("RCPT TO:<later@example.org>", "4")
		}
		p.to("b@example.org").content(plain, "250")
	})
	t.Run("unknown users", func(t *testing.T) {
		r := start(t, func(c *Config) { c.Limits.Errors, c.Access.RelayNets = 5, nil })
		p := r.greeted().from("a@b").to("one@localhost")
		for range 5 {
			p.say("RCPT TO:<x@elsewhere.example>", "550")
		}
		// A client that tries addresses learns no more.
		p.say("RCPT TO:<x@elsewhere.example>", "452 4.5.3")
		p.say("RCPT TO:<two@localhost>", "452 4.5.3")
		p.content(plain, "250")
		r.only("from <a@b>\nto <one@localhost>\nenv-end")
		p.from("a@b")
		for range 5 {
			p.say("RCPT TO:<x@elsewhere.example>", "550")
		}
		p.end("421 4.7.0")
	})
}

// minutes returns a clock that goes on by one at each call, so that what the machine has left
// is measured anew.
func minutes() func() time.Time {
	var n atomic.Int64
	start := time.Now()
	return func() time.Time { return start.Add(time.Duration(n.Add(1)) * time.Minute) }
}

// M46: free space and files are measured before the data; the greeting is given.
func TestLittleSpaceIsReportedBeforeTheData(t *testing.T) {
	var free, files atomic.Int64
	r := start(t, func(c *Config) {
		c.Limits.MinFree, c.Limits.MinFiles = 1<<20, 100
		c.Limits.Now = minutes()
		c.Limits.Measure = func(string) (limits.Room, error) { return limits.Room{Free: free.Load(), Files: files.Load()}, nil }
	})
	p := r.greeted()
	for name, tt := range map[string]struct {
		free, files int64
		mail, want  string
	}{
		"no space":               {1<<20 - 1, 1000, "MAIL FROM:<a@b>", "452 4.3.1"},
		"no space for it":        {10 << 20, 1000, "MAIL FROM:<a@b> SIZE=9500000", "452 4.3.1"},
		"no files":               {10 << 20, 99, "MAIL FROM:<a@b>", "452 4.3.0"},
		"exactly what is needed": {1 << 20, 100, "MAIL FROM:<a@b>", "250"},
	} {
		free.Store(tt.free)
		files.Store(tt.files)
		if got := p.say(tt.mail, tt.want[:3]); !strings.HasPrefix(got, tt.want) {
			t.Errorf("%s: got %q, want %s", name, got, tt.want)
		}
		p.say("RSET", "250")
	}
}

// M46.
func TestLoadTurnsClientsAwayForNow(t *testing.T) {
	var tenths atomic.Int64
	r := start(t, func(c *Config) {
		c.Limits.MaxLoad = 4
		c.Limits.Now = minutes()
		c.Limits.Load = func() (float64, error) { return float64(tenths.Load()) / 10, nil }
	})
	p := r.greeted()
	tenths.Store(45)
	p.say("MAIL FROM:<a@b>", "451 4.3.2")
	r.connect(0).end("421 4.3.2")
	tenths.Store(40)
	p.say("MAIL FROM:<a@b>", "250")
	r.dial()
}
