package smtpserver

import (
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"zmailer/internal/postoffice"
	"zmailer/internal/stage/smtpserver/policy"
)

// ruled runs a server with files beside its zmailer.conf, to whom clients of the
// loopback may use XCLIENT. Its domain is example.org.
func ruled(t *testing.T, files map[string]string, change func(*Config)) *running {
	t.Helper()
	dir := t.TempDir()
	files["localnames"] = "example.org\nexample.com\n" + files["localnames"]
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return start(t, func(c *Config) {
		c.Access.Dir = dir
		c.Access.LocalNamesFile = filepath.Join(dir, "localnames")
		c.Access.RelayNets = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}
		c.XClientNets = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
		if change != nil {
			change(c)
		}
	})
}

// as opens a connection from an address, of a user if login is not "".
func (r *running) as(addr, login string) *peer {
	r.t.Helper()
	p := r.dial()
	p.say("EHLO proxy.example.net", "250")
	line := "XCLIENT ADDR=" + addr
	if login != "" {
		line += " LOGIN=" + login
	}
	p.say(line, "220")
	p.say("EHLO client.example.net", "250")
	return p
}

func (p *peer) from(sender string) *peer {
	p.t.Helper()
	p.say("MAIL FROM:<"+sender+">", "250")
	return p
}

const outsider = "198.51.100.7"

func TestRulesDecideAboutRecipients(t *testing.T) {
	r := ruled(t, map[string]string{"access": `
reject  from=.spam.example          : "554 5.7.1 we know you"
defer   helo=client.example.net to=later@
freeze  from=odd@example.net        cause=odd
accept  to=partner.example
relay   client=203.0.113.0/24
accept  client=198.51.100.0/24      # lets nobody relay
`, "localnames": ""}, nil)
	for name, tt := range map[string]struct{ client, user, from, to, want string }{
		"to us":                        {outsider, "", "a@example.net", "b@example.org", "250"},
		"elsewhere":                    {outsider, "", "a@example.net", "b@example.edu", "550 5.7.1"},
		"a sender":                     {outsider, "", "a@mx.spam.example", "b@example.org", "554 5.7.1"},
		"for later":                    {outsider, "", "a@example.net", "later@example.org", "450 4.7.1"},
		"a backup":                     {outsider, "", "a@example.net", "b@partner.example", "250"},
		"somebody who may relay":       {"203.0.113.9", "", "a@example.net", "b@example.edu", "250"},
		"our network":                  {"192.0.2.1", "", "a@example.net", "b@example.edu", "250"},
		"a user":                       {outsider, "bob", "a@example.net", "b@example.edu", "250"},
		"a user, refused by a rule":    {outsider, "bob", "a@spam.example", "b@example.edu", "554 5.7.1"},
		"a network, refused by a rule": {"192.0.2.1", "", "a@spam.example", "b@example.org", "554 5.7.1"},
		"frozen":                       {outsider, "", "odd@example.net", "b@example.org", "250"},
		"frozen is no way to relay":    {outsider, "", "odd@example.net", "b@example.edu", "550 5.7.1"},
	} {
		t.Run(name, func(t *testing.T) {
			p := r.as(tt.client, tt.user).from(tt.from)
			p.say("RCPT TO:<"+tt.to+">", tt.want)
		})
	}
	if log := r.log.String(); !regexp.MustCompile(`msg=refused from=a@mx.spam.example .*by=access:2`).MatchString(log) {
		t.Errorf("the log does not name the rule:\n%s", log)
	}
}

// M13: the client gets 250, the message is in freezer/ and nowhere else, whoever else it
// goes to, with a text beside it that says why.
func TestFrozenMessageIsTakenAndHeld(t *testing.T) {
	r := ruled(t, map[string]string{"access": "freeze to=odd@example.org cause=Odd : \"look at it\"\n"}, nil)
	p := r.as(outsider, "").from("a@example.net")
	p.say("RCPT TO:<b@example.org>", "250")
	p.say("RCPT TO:<odd@example.org>", "250")
	p.say("DATA", "354")
	p.send("Subject: x\r\n\r\nhi\r\n.\r\n")
	p.expect("250 2.0.0")
	// The next one is not.
	p.from("a@example.net").say("RCPT TO:<b@example.org>", "250")
	p.say("DATA", "354")
	p.send("Subject: y\r\n\r\nhi\r\n.\r\n")
	p.expect("250 2.0.0")
	var held, why string
	for _, name := range r.names(postoffice.Freezer) {
		if strings.HasPrefix(name, "reason.") {
			why = name
		} else {
			held += name
		}
	}
	if !strings.HasSuffix(held, ".odd") || why == "" {
		t.Fatalf("freezer/ holds %q and %q, want one message and why", held, why)
	}
	text, err := os.ReadFile(filepath.Join(r.dir, postoffice.Freezer, why))
	if err != nil || !strings.Contains(string(text), "frozen") || !strings.Contains(string(text), "access:1: look at it") {
		t.Errorf("%s: %q, %v", why, text, err)
	}
	b, err := os.ReadFile(filepath.Join(r.dir, postoffice.Freezer, held))
	if err != nil || !strings.Contains(string(b), "to <odd@example.org>\n") || !strings.HasSuffix(string(b), "env-end\nSubject: x\n\nhi\n") {
		t.Errorf("%s: %q, %v", held, b, err)
	}
	if n := len(r.names(postoffice.Router)); n != 1 {
		t.Errorf("router/ holds %d messages, want the second", n)
	}
	if left := r.names(postoffice.Public); len(left) > 0 {
		t.Errorf("public/ holds %q", left)
	}
}

// A disk that fails while a message is frozen loses nothing and promises nothing.
func TestDiskTroubleWhileFreezingIsTemporary(t *testing.T) {
	for _, op := range []string{"write", "fsync", "rename", "syncdir", "chmod"} {
		t.Run(op, func(t *testing.T) {
			f := &fault{}
			r := ruled(t, map[string]string{"access": "freeze from=a@example.net\n"}, func(c *Config) {
				c.FS = &troubled{before: f.before}
			})
			p := r.as(outsider, "")
			send := func(want string) {
				t.Helper()
				p.from("a@example.net").say("RCPT TO:<b@example.org>", "250")
				p.say("DATA", "354")
				p.send("Subject: x\r\n\r\nhi\r\n.\r\n")
				p.expect(want)
			}
			f.set(op, unix.ENOSPC)
			send("452 4.3.1")
			r.nothing()
			if held := r.names(postoffice.Freezer); len(held) > 0 {
				t.Errorf("freezer/ holds %q", held)
			}
			f.set("", nil)
			send("250")
		})
	}
}

// Rules about the content decide after it; recipients that other rules wait with
// go in a transaction of their own.
func TestRulesAboutTheContentDecideAfterIt(t *testing.T) {
	r := ruled(t, map[string]string{"access": "reject size>100 to=example.org : \"552 5.3.4 too much for us\"\nfreeze rcpts>2\n"}, nil)
	small, large := "Subject: x\r\n\r\nhi\r\n.\r\n", "Subject: x\r\n\r\n"+strings.Repeat("x", 200)+"\r\n.\r\n"
	for name, tt := range map[string]struct {
		to      []string
		replies []string
		content string
		want    string
	}{
		"small":                       {[]string{"a@example.org"}, []string{"250"}, small, "250"},
		"large":                       {[]string{"a@example.org"}, []string{"250"}, large, "552 5.3.4"},
		"large, to another domain":    {[]string{"a@example.com"}, []string{"250"}, large, "250"},
		"to both":                     {[]string{"a@example.com", "a@example.org", "b@example.com"}, []string{"250", "452 4.5.3", "250"}, large, "250"},
		"to one domain":               {[]string{"a@example.org", "b@example.org"}, []string{"250", "250"}, large, "552"},
		"too many of them are frozen": {[]string{"a@example.com", "b@example.com", "c@example.com"}, []string{"250", "250", "250"}, small, "250"},
	} {
		t.Run(name, func(t *testing.T) {
			before := len(r.names(postoffice.Freezer))
			p := r.as(outsider, "").from("a@example.net")
			for i, to := range tt.to {
				p.say("RCPT TO:<"+to+">", tt.replies[i])
			}
			p.say("DATA", "354")
			p.send(tt.content)
			p.expect(tt.want)
			if frozen := len(r.names(postoffice.Freezer)) > before; frozen != (name == "too many of them are frozen") {
				t.Errorf("frozen: %v", frozen)
			}
			p.say("QUIT", "221")
		})
	}
}

func TestUsersSendAsThemselves(t *testing.T) {
	files := map[string]string{"senders": `
bob@example.org         bob, carol
sales@example.org       *
example.com             carol
.shop.example           shop
`}
	r := ruled(t, files, func(c *Config) { c.Access.SenderLogin = []string{"senders"} })
	for name, tt := range map[string]struct{ user, from, want string }{
		"his own":         {"bob", "bob@example.org", "250"},
		"in other case":   {"Bob", "BOB@EXAMPLE.ORG", "250"},
		"shared":          {"carol", "bob@example.org", "250"},
		"anybody's":       {"dave", "sales@example.org", "250"},
		"another's":       {"dave", "bob@example.org", "553 5.7.1"},
		"a whole domain":  {"carol", "x@example.com", "250"},
		"not his domain":  {"bob", "x@example.com", "553 5.7.1"},
		"below a domain":  {"shop", "x@eu.shop.example", "250"},
		"unlisted":        {"bob", "x@example.net", "553 5.7.1"},
		"the null sender": {"bob", "", "250"},
		"no user":         {"", "bob@example.org", "250"},
	} {
		t.Run(name, func(t *testing.T) {
			r.as(outsider, tt.user).say("MAIL FROM:<"+tt.from+">", tt.want)
		})
	}
}

// The domains that are ours for the router are ours here, whatever source they stand in.
func TestSourcesOfLocalNamesCount(t *testing.T) {
	names := filepath.Join(t.TempDir(), "others")
	if err := os.WriteFile(names, []byte("example.edu\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	r := ruled(t, map[string]string{}, func(c *Config) {
		c.Access.LocalNames = []string{"localnames", names, "socket:unix:" + filepath.Join(t.TempDir(), "nobody")}
		c.Access.Source.Timeout = time.Second
	})
	p := r.as(outsider, "").from("a@example.net")
	p.say("RCPT TO:<b@example.org>", "250")
	p.say("RCPT TO:<b@example.edu>", "250")
	// The third source cannot be asked.
	p.say("RCPT TO:<b@example.gov>", "451 4.3.0")
	if !strings.Contains(r.log.String(), "msg=access-trouble") {
		t.Error("no log line")
	}
}

func TestAccessSettingsComeFromTheConfiguration(t *testing.T) {
	c := load(t, "HOSTNAME=mx.example.org\nLOCALNAMES=\"localnames db:names\"\nSENDERLOGIN=senders\nLOOKUPTIMEOUT=7s\nETRNNETS=192.0.2.0/24\nRCPTCHECK=yes\nRCPTCHECKTIME=2s\nRCPTCHECKKEEP=1h\nRCPTCHECKTROUBLE=defer\nRELAYNETS=\"192.0.2.77/24, 2001:db8::1\"\n")
	got, err := ConfigFrom(c)
	if err != nil {
		t.Fatal(err)
	}
	a := got.Access
	nets := []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("2001:db8::1/128")}
	if !slices.Equal(a.RelayNets, nets) || a.LocalNamesFile != filepath.Join(c.Dir, "localnames") || strings.Join(a.LocalNames, " ") != "localnames db:names" || strings.Join(a.SenderLogin, " ") != "senders" || a.Dir != c.Dir ||
		a.Source.Timeout != 7*time.Second || len(a.ETRNNets) != 1 || a.ETRNNets[0].String() != "192.0.2.0/24" ||
		a.RcptCheck == nil || a.RcptCheck.Time != 2*time.Second || a.RcptCheck.Keep != time.Hour || !a.RcptCheck.Defer || a.RcptCheck.All {
		t.Errorf("got %+v, %+v", a, a.RcptCheck)
	}
	for _, line := range []string{"ETRNNETS=here", "SENDERLOGIN=what:x", "RCPTCHECK=sometimes", "RCPTCHECKTIME=0"} {
		_, err := settings(t, line)
		if err == nil || !strings.Contains(err.Error(), ":2: ") {
			t.Errorf("%s: got %v, want the line", line, err)
		}
	}
}

// While the router cannot be asked, RCPTCHECKTROUBLE decides, and it is logged once.
func TestTroubleWithTheRouterIsNoUnknownUser(t *testing.T) {
	for name, tt := range map[string]struct {
		puts bool
		want string
	}{
		"accept": {false, "250"},
		"defer":  {true, "451 4.3.0"},
	} {
		t.Run(name, func(t *testing.T) {
			r := ruled(t, map[string]string{"access": "reject to=closed@example.org\n"}, func(c *Config) {
				c.Access.RcptCheck = &policy.RcptCheck{Defer: tt.puts}
				c.Access.RcptCheck.Program = []string{filepath.Join(t.TempDir(), "router")}
			})
			p := r.as(outsider, "").from("a@example.net")
			for range 3 {
				p.say("RCPT TO:<b@example.org>", tt.want)
			}
			p.say("RCPT TO:<closed@example.org>", "550 5.7.1")
			p.say("RCPT TO:<b@example.edu>", "550 5.7.1")
			if n := strings.Count(r.log.String(), "msg=rcpt-check-trouble"); n != 1 {
				t.Errorf("logged %d times, want once", n)
			}
		})
	}
}
