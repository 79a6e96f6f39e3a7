package smtpserver

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"zmailer/internal/stage/smtpserver/policy/limits"
)

// M46: connections at once, of one address and in all.
func TestConnectionsOfOneAddressAreLimited(t *testing.T) {
	r := start(t, func(c *Config) { c.Limits.PerAddress = 2 })
	first, second := r.dial(), r.dial()
	third := r.connect()
	third.expect("421 4.7.0")
	third.end()
	first.say("QUIT", "221")
	first.end()
	eventually(t, "there is room for another", func() bool {
		p := r.connect()
		defer p.Close()
		return strings.HasPrefix(p.reply(), "220")
	})
	second.say("NOOP", "250")
}

// M46.
func TestRatesAreAnsweredForNow(t *testing.T) {
	rate := limits.Rate{Count: 2, Per: time.Hour}
	t.Run("connections", func(t *testing.T) {
		r := start(t, func(c *Config) { c.Limits.Connections = rate })
		for range 2 {
			p := r.dial()
			p.say("QUIT", "221")
		}
		p := r.connect()
		p.expect("421 4.7.0")
		p.end()
	})
	t.Run("messages", func(t *testing.T) {
		r := start(t, func(c *Config) { c.Limits.Messages = rate })
		p := r.dial()
		p.say("EHLO c", "250")
		for range 2 {
			p.say("MAIL FROM:<a@b>", "250")
			p.say("RCPT TO:<c@d>", "250")
			p.say("DATA", "354")
			p.say("hi\r\n.", "250")
		}
		p.say("MAIL FROM:<a@b>", "450 4.7.1")
		p.say("RCPT TO:<c@d>", "503")
		if got := len(r.names("router")); got != 2 {
			t.Errorf("%d messages, want 2", got)
		}
	})
	t.Run("recipients", func(t *testing.T) {
		r := start(t, func(c *Config) { c.Limits.Recipients = rate })
		p := r.dial()
		p.say("EHLO c", "250")
		p.say("MAIL FROM:<a@b>", "250")
		p.say("RCPT TO:<one@d>", "250")
		p.say("RCPT TO:<two@d>", "250")
		p.say("RCPT TO:<three@d>", "450 4.7.1")
		p.say("DATA", "354")
		p.say("hi\r\n.", "250")
		if got := r.only(); strings.Contains(got, "three") || !strings.Contains(got, "two") {
			t.Errorf("got %q", got)
		}
	})
	t.Run("a user's messages", func(t *testing.T) {
		r := submission(t, func(c *Config) { c.Limits.Messages = limits.Rate{Count: 1, Per: time.Hour} })
		for _, want := range []string{"250", "450 4.7.1"} {
			p := r.dial()
			p.say("EHLO c", "250")
			p.say("AUTH PLAIN "+b64("\x00jane\x00secret"), "235")
			p.say("MAIL FROM:<a@b>", want)
		}
	})
}

// M46: recipients of one message.
func TestRecipientsOfAMessageAreLimited(t *testing.T) {
	r := start(t, func(c *Config) { c.MaxRecipients = 2 })
	p := r.dial()
	p.say("EHLO c", "250")
	p.say("MAIL FROM:<a@b>", "250")
	p.say("RCPT TO:<one@d>", "250")
	p.say("RCPT TO:<two@d>", "250")
	p.say("RCPT TO:<three@d>", "452 4.5.3")
	p.say("DATA", "354")
	p.say("hi\r\n.", "250")
}

// M46: errors of one connection.
func TestManyErrorsEndTheConnection(t *testing.T) {
	one := func(p *peer) { p.say("MAIL FROM:<a@b", "501") }
	t.Run("at the limit", func(t *testing.T) {
		r := start(t, func(c *Config) { c.Limits.Errors = 5 })
		p := r.dial()
		p.say("EHLO c", "250")
		for range 5 {
			one(p)
		}
		p.expect("421 4.7.0")
		p.end()
	})
	t.Run("sent all at once", func(t *testing.T) {
		r := start(t, func(c *Config) { c.Limits.Errors = 5 })
		p := r.dial()
		p.say("EHLO c", "250")
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
		r := start(t, func(c *Config) { c.Limits.Errors = 5 })
		p := r.dial()
		p.say("EHLO c", "250")
		for range 4 {
			one(p)
			one(p)
			p.say("MAIL FROM:<a@b>", "250")
			p.say("RCPT TO:<c@d>", "250")
			p.say("DATA", "354")
			p.say("hi\r\n.", "250")
		}
	})
}

// A client that is cut comes again with the same list in the same order: those behind the
// cut would never get the message.
func TestRefusedRecipientsCostTheOthersNothing(t *testing.T) {
	finish := func(r *running, p *peer, rcpts int) {
		t.Helper()
		p.say("DATA", "354")
		p.say("hi\r\n.", "250")
		if got := strings.Count(r.only(), "\nto "); got != rcpts {
			t.Errorf("%d recipients, want %d", got, rcpts)
		}
	}
	t.Run("above MAXRCPT", func(t *testing.T) {
		r := start(t, func(c *Config) { c.Limits.Errors, c.MaxRecipients = 5, 2 })
		p := r.dial()
		p.say("EHLO c", "250")
		p.say("MAIL FROM:<a@b>", "250")
		p.say("RCPT TO:<one@d>", "250")
		p.say("RCPT TO:<two@d>", "250")
		for range 20 {
			p.say("RCPT TO:<three@d>", "452 4.5.3")
		}
		finish(r, p, 2)
	})
	t.Run("put off before any is taken", func(t *testing.T) {
		r := ruled(t, map[string]string{"access": "defer to=later@example.org\n"}, func(c *Config) { c.Limits.Errors = 5 })
		p := r.as(outsider, "").from("a@example.net")
		for range 20 {
			p.say("RCPT TO:<later@example.org>", "4")
		}
		p.say("RCPT TO:<b@example.org>", "250")
		finish(r, p, 1)
	})
	t.Run("nobody there", func(t *testing.T) {
		r := start(t, func(c *Config) { c.Limits.Errors, c.Access.RelayNets, c.Access.LocalNamesFile = 5, nil, "" })
		p := r.dial()
		p.say("EHLO c", "250")
		p.say("MAIL FROM:<a@b>", "250")
		p.say("RCPT TO:<one@localhost>", "250")
		for range 5 {
			p.say("RCPT TO:<x@elsewhere.example>", "550")
		}
		// Who tries addresses learns no more.
		p.say("RCPT TO:<x@elsewhere.example>", "452 4.5.3")
		p.say("RCPT TO:<two@localhost>", "452 4.5.3")
		finish(r, p, 1)
		p.say("MAIL FROM:<a@b>", "250")
		for range 5 {
			p.say("RCPT TO:<x@elsewhere.example>", "550")
		}
		p.expect("421 4.7.0")
		p.end()
	})
}

// minutes is a clock that goes on by one each time it is looked at, so that what the
// machine has left is measured anew.
func minutes() func() time.Time {
	var n atomic.Int64
	start := time.Now()
	return func() time.Time { return start.Add(time.Duration(n.Add(1)) * time.Minute) }
}

// M46: free space and files are looked at before the data, and the greeting is given.
func TestLittleSpaceIsToldBeforeTheData(t *testing.T) {
	var free, files atomic.Int64
	r := start(t, func(c *Config) {
		c.Limits.MinFree, c.Limits.MinFiles = 1<<20, 100
		c.Limits.Now = minutes()
		c.Limits.Measure = func(string) (int64, int64, error) { return free.Load(), files.Load(), nil }
	})
	p := r.dial()
	p.say("EHLO c", "250")
	for name, tt := range map[string]struct {
		free, files int64
		mail, want  string
	}{
		"enough":           {10 << 20, 1000, "MAIL FROM:<a@b>", "250"},
		"no space":         {1<<20 - 1, 1000, "MAIL FROM:<a@b>", "452 4.3.1"},
		"no space for it":  {10 << 20, 1000, "MAIL FROM:<a@b> SIZE=9500000", "452 4.3.1"},
		"space for it":     {10 << 20, 1000, "MAIL FROM:<a@b> SIZE=9000000", "250"},
		"no files":         {10 << 20, 99, "MAIL FROM:<a@b>", "452 4.3.0"},
		"files of no end":  {10 << 20, -1, "MAIL FROM:<a@b>", "250"},
		"space once again": {10 << 20, 1000, "MAIL FROM:<a@b>", "250"},
	} {
		free.Store(tt.free)
		files.Store(tt.files)
		if got := p.say(tt.mail, tt.want[:3]); !strings.HasPrefix(got, tt.want) {
			t.Errorf("%s: got %q, want %s", name, got, tt.want)
		}
		p.say("RSET", "250")
	}
	r.nothing()
}

// M46.
func TestLoadTurnsClientsAwayForNow(t *testing.T) {
	var tenths atomic.Int64
	tenths.Store(10)
	r := start(t, func(c *Config) {
		c.Limits.MaxLoad = 4
		c.Limits.Now = minutes()
		c.Limits.Load = func() (float64, error) { return float64(tenths.Load()) / 10, nil }
	})
	p := r.dial()
	p.say("EHLO c", "250")
	p.say("MAIL FROM:<a@b>", "250")
	p.say("RSET", "250")
	tenths.Store(45)
	p.say("MAIL FROM:<a@b>", "451 4.3.2")
	late := r.connect()
	late.expect("421 4.3.2")
	late.end()
	tenths.Store(40)
	p.say("MAIL FROM:<a@b>", "250")
	r.dial()
	r.nothing()
}

// M46: sizes, declared and not.
func TestSizeIsLimited(t *testing.T) {
	r := start(t, func(c *Config) { c.MaxSize = 1000 })
	p := r.dial()
	p.say("EHLO c", "250")
	p.say("MAIL FROM:<a@b> SIZE=1001", "552 5.3.4")
	p.say("MAIL FROM:<a@b> SIZE=1000", "250")
	p.say("RCPT TO:<c@d>", "250")
	p.say("DATA", "354")
	p.say(fmt.Sprintf("%01000d\r\n.", 0), "552 5.3.4")
	r.nothing()
}
