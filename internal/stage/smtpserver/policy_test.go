package smtpserver

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"zmailer/internal/postoffice"
	"zmailer/internal/run/assert"
	"zmailer/internal/run/logtest"
	"zmailer/internal/stage/smtpserver/policy"
)

// files writes files into a directory.
func files(t *testing.T, texts map[string]string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for name, text := range texts {
		writeFile(t, filepath.Join(dir, name), []byte(text), 0o644)
	}
	return dir
}

// ruled runs a server with files beside its zmailer.conf. Its domain is example.org, and
// clients may use XCLIENT.
func ruled(t *testing.T, texts map[string]string, change func(*Config)) *running {
	t.Helper()
	texts["localnames"] = "example.org\nexample.com\n"
	dir := files(t, texts)
	return start(t, func(c *Config) {
		c.Access.Dir, c.Access.LocalNamesFile = dir, filepath.Join(dir, "localnames")
		c.Access.RelayNets = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}
		c.XClientNets = loopback
		if change != nil {
			change(c)
		}
	})
}

const outsider = "198.51.100.7"

func TestRulesDecideAboutRecipients(t *testing.T) {
	r := ruled(t, map[string]string{"access": `
reject  from=.spam.example          : "554 5.7.1 we know you"
defer   helo=client.example.net to=later@
freeze  from=odd@example.net        cause=odd
accept  to=partner.example
relay   client=203.0.113.0/24
accept  client=198.51.100.0/24      # lets no client relay
`}, nil)
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
	if r.log.Count("msg=refused from=a@mx.spam.example", "by=access:2") == 0 {
		t.Error("the log does not name the rule")
	}
}

// M13: the client gets 250, the message is in freezer/ and nowhere else, whoever else it
// goes to, with the reason beside it.
func TestFrozenMessageIsTakenAndHeld(t *testing.T) {
	r := ruled(t, map[string]string{"access": "freeze to=odd@example.org cause=Odd : \"look at it\"\n"}, nil)
	p := r.as(outsider, "").from("a@example.net").to("b@example.org", "odd@example.org")
	p.content("Subject: x\n\nhi\n", "250 2.0.0")
	held, why := r.frozen("odd")
	if !strings.Contains(why, "frozen") || !strings.Contains(why, "access:1: look at it") {
		t.Errorf("the reason is %q", why)
	}
	if !strings.Contains(held, "to <odd@example.org>\n") || !strings.HasSuffix(held, "env-end\nSubject: x\n\nhi\n") {
		t.Errorf("it holds %q", held)
	}
	assert.Equal(t, len(r.names(postoffice.Router)), 0)
	p.mail("a@example.net", "b@example.org", plain, "250 2.0.0") // the next one is not
	r.only()
}

// frozen returns the one message in freezer/, with that cause, and the text beside it.
func (r *running) frozen(cause string) (message, reason string) {
	r.t.Helper()
	for _, name := range r.names(postoffice.Freezer) {
		text := string(read(r.t, filepath.Join(r.dir, postoffice.Freezer, name)))
		switch {
		case strings.HasPrefix(name, "reason.") && reason == "":
			reason = text
		case strings.HasSuffix(name, "."+cause) && message == "":
			message = text
		default:
			r.t.Errorf("freezer/ holds %s", name)
		}
	}
	if message == "" || reason == "" {
		r.t.Errorf("freezer/ holds %q", r.names(postoffice.Freezer))
	}
	return message, reason
}

// Rules about the content decide after it; recipients that other rules wait with
// go in a transaction of their own.
func TestRulesAboutTheContentDecideAfterIt(t *testing.T) {
	r := ruled(t, map[string]string{"access": "reject size>100 to=example.org : \"552 5.3.4 too much for us\"\nfreeze rcpts>2\n"}, nil)
	large := plain + strings.Repeat("x", 200) + "\n"
	for name, tt := range map[string]struct {
		to      []string
		replies []string
		content string
		want    string
	}{
		"small":                       {[]string{"a@example.org"}, []string{"250"}, plain, "250"},
		"large":                       {[]string{"a@example.org"}, []string{"250"}, large, "552 5.3.4"},
		"large, to another domain":    {[]string{"a@example.com"}, []string{"250"}, large, "250"},
		"to both":                     {[]string{"a@example.com", "a@example.org", "b@example.com"}, []string{"250", "452 4.5.3", "250"}, large, "250"},
		"to one domain":               {[]string{"a@example.org", "b@example.org"}, []string{"250", "250"}, large, "552"},
		"too many of them are frozen": {[]string{"a@example.com", "b@example.com", "c@example.com"}, []string{"250", "250", "250"}, plain, "250"},
	} {
		t.Run(name, func(t *testing.T) {
			before := len(r.names(postoffice.Freezer))
			p := r.as(outsider, "").from("a@example.net")
			for i, to := range tt.to {
				p.say("RCPT TO:<"+to+">", tt.replies[i])
			}
			p.content(tt.content, tt.want)
			assert.Equal(t, len(r.names(postoffice.Freezer)) > before, name == "too many of them are frozen", "frozen")
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

// The domains that are ours for the router are ours here, whatever source has them.
func TestSourcesOfLocalNamesCount(t *testing.T) {
	names := filepath.Join(files(t, map[string]string{"others": "example.edu\n"}), "others")
	r := ruled(t, map[string]string{}, func(c *Config) {
		c.Access.LocalNames = []string{"localnames", names, "socket:unix:" + filepath.Join(t.TempDir(), "nobody")}
		c.Access.Source.Timeout = time.Second
	})
	p := r.as(outsider, "").from("a@example.net").to("b@example.org", "b@example.edu")
	// The third source cannot be asked.
	p.say("RCPT TO:<b@example.gov>", "451 4.3.0")
	r.log.Expect(t, 1, "msg=access-trouble")
}

func TestUnauthenticatedClientsSendToLocalDomainsOnly(t *testing.T) {
	names := filepath.Join(t.TempDir(), "localnames")
	r := start(t, func(c *Config) { c.Access.RelayNets, c.Access.LocalNamesFile = nil, names })
	p := r.greeted().from("a@b")
	// HOSTNAME and the built-in file
	p.to("c@MX.Example.ORG", "postmaster", "c@localhost").say("RCPT TO:<c@here.example>", "550 5.7.1")
	// The file is read again when it has settled.
	change := func(text, line, prefix string) {
		t.Helper()
		writeFile(t, names, []byte(text), 0o644)
		logtest.Eventually(t, line, func() bool {
			p.send(line + "\r\n")
			return strings.HasPrefix(p.reply(), prefix)
		})
	}
	change("# ours\nHere.Example. some text\nbücher.example\n", "RCPT TO:<c@here.EXAMPLE>", "250")
	p.to("c@xn--bcher-kva.example").say("RCPT TO:<c@localhost>", "550 5.7.1")
	p.say("RCPT TO:<c@sub.here.example>", "550 5.7.1")
	change("there.example\n", "RCPT TO:<c@there.example>", "250")
	p.say("RCPT TO:<c@here.example>", "550 5.7.1")
	writeFile(t, names, []byte("here.example\nno domain..\n..\n"), 0o644)
	logtest.Eventually(t, "the bad line is logged", func() bool {
		p.say("RCPT TO:<c@here.example>", "550 5.7.1")
		return r.log.Count("msg=table-refused") > 0
	})
	p.to("d@there.example") // the version that was read last stays in use
	assert.Must(t, os.Remove(names))
	logtest.Eventually(t, "the built-in file again", func() bool {
		p.send("RCPT TO:<c@localhost>\r\n")
		return strings.HasPrefix(p.reply(), "250")
	})
	for _, to := range []string{"c@there.example", "c@[127.0.0.1]", `"c@mx.example.org"@there.example`, "@mx.example.org:c@there.example"} {
		p.say("RCPT TO:<"+to+">", "550 5.7.1")
	}
	// Atk9: the address that the client has connected to is ours (RFC 5321 section 4.5.1).
	p.to("Postmaster@[127.0.0.1]").say("RCPT TO:<postmaster@[127.0.0.2]>", "550 5.7.1")
}

// While the router cannot be asked, RCPTCHECKTROUBLE decides, and it is logged once.
func TestTroubleWithTheRouterIsNoUnknownUser(t *testing.T) {
	for deferred, want := range map[bool]string{false: "250", true: "451 4.3.0"} {
		r := ruled(t, map[string]string{"access": "reject to=closed@example.org\n"}, func(c *Config) {
			c.Access.RcptCheck = &policy.RcptCheck{Defer: deferred}
			c.Access.RcptCheck.Program = []string{filepath.Join(t.TempDir(), "router")}
		})
		p := r.as(outsider, "").from("a@example.net")
		for range 3 {
			p.say("RCPT TO:<b@example.org>", want)
		}
		p.say("RCPT TO:<closed@example.org>", "550 5.7.1")
		p.say("RCPT TO:<b@example.edu>", "550 5.7.1")
		r.log.Expect(t, 1, "msg=rcpt-check-trouble")
	}
}

// Op7: the line of a message that is refused has its recipients, so that a search for one finds it.
func TestOp7RefusedMessageIsLoggedWithItsRecipients(t *testing.T) {
	r := ruled(t, map[string]string{"access": "reject size>1000\n"}, nil)
	r.as(outsider, "").from("a@example.net").to("b@example.org").to("c@example.org").content("Subject: x\r\n\r\n"+strings.Repeat("long\r\n", 300), "550")
	r.log.Await(t, "msg=refused", "from=a@example.net", "rcpt=b@example.org,c@example.org", "stage=data")
}
