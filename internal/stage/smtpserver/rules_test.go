package smtpserver

import (
	"os"
	"strings"
	"testing"
	"time"

	"zmailer/internal/mail/contentrules"
	"zmailer/internal/run/assert"
	"zmailer/internal/run/logtest"
	"zmailer/internal/stage/smtpserver/content/checks/checkstest"
	"zmailer/internal/stage/smtpserver/policy"
	"zmailer/internal/wire/milter/miltertest"
)

// contentRuled is a server with rules about header and body.
func contentRuled(t *testing.T, texts map[string]string, change func(*Config)) *running {
	dir := files(t, texts)
	return start(t, func(c *Config) {
		c.Access.Dir = dir
		if change != nil {
			change(c)
		}
	})
}

// Op10: before the 250, with and without filters and checks that read the message first.
func TestOp10RulesAboutTheContentDecideBeforeTheReply(t *testing.T) {
	rules := map[string]string{
		contentrules.HeaderFile: "external reject Subject /buy/ 5.7.9 no shops\nexternal hold X-Odd /./ look\nexternal discard X-Drop\nall warn X-Warn /(.*)/ seen $1\n" +
			"external redirect X-Other other@example.net\nlocal reject X-Local\n/^x-exe:/ REJECT 4.7.1 later\n",
		contentrules.BodyFile: "/viagra/ REJECT 5.7.1 no pills\n",
		"localnames":          "example.com\n",
	}
	for name, tt := range map[string]struct {
		message string
		reply   string
		dir     string // where the message is; "": nowhere
		line    string // of its envelope
	}{
		"nothing":            {"Subject: x\n\ntext\n", "250", "router", "rules followed"},
		"the header":         {"Subject: buy\n\ntext\n", "550 5.7.9 no shops", "", ""},
		"the body":           {"Subject: x\n\ntext\nVIAGRA\n", "550 5.7.1 no pills", "", ""},
		"a long body":        {"Subject: x\n\nviagra\n" + strings.Repeat("text\n", 100_000), "550 5.7.1 no pills", "", ""},
		"a temporary reply":  {"X-Exe: 1\n\n", "450 4.7.1 later", "", ""},
		"held":               {"X-Odd: 1\n\ntext\n", "250", "freezer", ""},
		"discarded":          {"X-Drop: 1\n\ntext\n", "250", "", ""},
		"a warning":          {"X-Warn: 1\n\ntext\n", "250", "router", "rules followed"},
		"for the router":     {"X-Other: 1\n\ntext\n", "250", "router", "rules followed"},
		"of local mail":      {"X-Local: 1\n\ntext\n", "250", "router", "rules followed"},
		"a header too large": {strings.Repeat("X: "+strings.Repeat("x", 900)+"\n", 700) + "\n", "552 5.3.4", "", ""},
	} {
		for path, change := range map[string]func(*Config){
			"as it comes": nil,
			"spooled": func(c *Config) {
				c.Filters.Checks.SPF, c.Filters.Checks.Server, c.Filters.Checks.Timeout = true, "127.0.0.1:9", time.Millisecond
				c.Access.RelayNets, c.Access.LocalNames = nil, []string{"localnames"}
			},
		} {
			t.Run(name+", "+path, func(t *testing.T) {
				if strings.HasPrefix(name, "a header too") && path == "spooled" {
					t.Skip("the checks refuse it as well")
				}
				r := contentRuled(t, rules, change)
				p := r.greeted().from("a@example.net").to("b@example.com")
				p.content(tt.message, tt.reply)
				for _, dir := range []string{"router", "freezer"} {
					names := r.names(dir)
					if dir == "freezer" {
						names = deleteReasons(names)
					}
					assert.Equal(t, len(names) == 1, dir == tt.dir, "%s: %q", dir, names)
				}
				assert.Equal(t, len(r.names("public")), 0)
				if tt.line != "" {
					r.only(tt.line)
				}
				// The connection goes on, and nothing of the message is left.
				p.mail("a@example.net", "b@example.com", plain, "250")
			})
		}
	}
}

func deleteReasons(names []string) (left []string) {
	for _, n := range names {
		if !strings.HasPrefix(n, "reason.") {
			left = append(left, n)
		}
	}
	return left
}

// Op10: a content filter that returns mail is not asked twice; and what is not configured leaves
// no trace.
func TestOp10ExemptClientsMailIsNotLookedAt(t *testing.T) {
	rules := map[string]string{contentrules.BodyFile: "/hello/ REJECT\n"}
	r := contentRuled(t, rules, func(c *Config) { c.RulesExempt = loopback })
	r.greeted().mail("a@example.net", "b@example.com", "Subject: x\n\nhello\n", "250")
	r.only("rules skipped")
	r = contentRuled(t, nil, nil)
	r.greeted().mail("a@example.net", "b@example.com", "Subject: x\n\nhello\n", "250")
	assert.Equal(t, strings.Contains(r.only(), "\nrules "), false)
}

// Op10: the file is read again; a bad version does not stop the one before.
func TestOp10RulesAreReadAgain(t *testing.T) {
	dir := files(t, map[string]string{contentrules.BodyFile: "/one/ REJECT\n"})
	r := start(t, func(c *Config) { c.Access.Dir = dir })
	const two = "Subject: x\n\ntwo\n"
	r.greeted().mail("a@example.net", "b@example.com", two, "250")
	r.clear()
	path := dir + "/" + contentrules.BodyFile
	write := func(text string) {
		assert.Must(t, os.WriteFile(path, []byte(text), 0o644))
		old := time.Now().Add(-time.Minute)
		assert.Must(t, os.Chtimes(path, old, old))
	}
	write("/two/ REJECT\n")
	seen := func(word string) {
		p := r.greeted()
		logtest.Eventually(t, word, func() bool {
			p.mail("a@example.net", "b@example.com", two, "")
			return r.log.Count(word) > 0
		})
	}
	seen("msg=table-read")
	r.greeted().mail("a@example.net", "b@example.com", two, "550 5.7.1")
	write("/two/ REFUSE\n")
	seen("msg=table-refused")
	r.greeted().mail("a@example.net", "b@example.com", two, "550 5.7.1")
}

// Op13: reject_sender_login_mismatch is about the envelope; HEADERFROM is about the field that
// people see.
func TestOp13FromFieldOfUsers(t *testing.T) {
	dir := files(t, map[string]string{"senders": "jane@example.net jane\njane@sub.example.net jane\n"})
	for name, tt := range map[string]struct{ rule, header, reply string }{
		"any":                    {"any", "From: x@y.example", "250"},
		"the sender":             {"sender", "From: Jane <Jane@EXAMPLE.net>", "250"},
		"the sender, its case":   {"sender", "From: Jane <jane@EXAMPLE.net>", "250"},
		"another":                {"sender", "From: joe@example.net", "550 5.7.1"},
		"the domain":             {"domain", "From: joe@example.net", "250"},
		"another domain":         {"domain", "From: joe@sub.example.net", "550 5.7.1"},
		"an address of the user": {"login", "From: jane@sub.example.net", "250"},
		"one of another":         {"login", "From: joe@example.net", "550 5.7.1"},
		"one of two":             {"login", "From: jane@example.net, joe@example.net", "550 5.7.1"},
		"a second field":         {"login", "From: jane@example.net\nFrom: joe@example.net", "550 5.7.1"},
		"none, which is added":   {"login", "Subject: x", "250"},
		"an empty one":           {"login", "From:", "550 5.7.1"},
		"one that is no address": {"login", "From: joe", "550 5.7.1"},
		"in a group":             {"login", "From: g: joe@example.net;", "550 5.7.1"},
		"another's name":         {"login", "From: \"joe@example.net\" <jane@example.net>", "250"},
	} {
		t.Run(name, func(t *testing.T) {
			r := submission(t, func(c *Config) {
				c.Access.Dir, c.Access.SenderLogin, c.Access.HeaderFrom = dir, []string{"senders"}, tt.rule
			})
			p := r.greeted()
			p.say("AUTH PLAIN "+b64("\x00jane\x00secret"), "235")
			p.mail("jane@example.net", "b@example.com", tt.header+"\n\nx\n", tt.reply)
		})
	}
	// Other hosts' mail is not concerned.
	r := start(t, func(c *Config) { c.Access.HeaderFrom = "sender" })
	r.greeted().mail("jane@example.net", "b@example.com", "From: x@y\n\n", "250")
}

// A user who may not write joe's address does not do so by other spellings, nor by leaving the
// envelope sender out.
func TestFromFieldIsNotEvaded(t *testing.T) {
	dir := files(t, map[string]string{"senders": "jane@example.net jane\n"})
	const jane = "jane@example.net"
	servers := map[string]*running{}
	for _, rule := range []string{"login", "sender", "domain"} {
		servers[rule] = submission(t, func(c *Config) {
			c.Access.Dir, c.Access.SenderLogin, c.Access.HeaderFrom = dir, []string{"senders"}, rule
		})
	}
	for name, tt := range map[string]struct{ rule, sender, header, reply string }{
		"null sender, domain":         {"domain", "", "From: joe@example.net", "550 5.7.1"},
		"null sender, sender":         {"sender", "", "From: joe@example.net", "550 5.7.1"},
		"null sender, login":          {"login", "", "From: joe@example.net", "550 5.7.1"},
		"a receipt of the user's own": {"sender", "", "From: jane@example.net", "250"},
		"a blank before the colon":    {"login", jane, "From : joe@example.net", "550 5.7.1"},
		"folded":                      {"login", jane, "From:\n joe@example.net", "550 5.7.1"},
		"in small letters":            {"login", jane, "fROM: joe@example.net", "550 5.7.1"},
		"behind a line that is none":  {"login", jane, "no field\nFrom: joe@example.net", "550 5.7.1"},
		"a comment":                   {"login", jane, "From: (jane@example.net) joe@example.net", "550 5.7.1"},
		"two addresses in brackets":   {"login", jane, "From: <joe@example.net> <jane@example.net>", "550 5.7.1"},
		"an encoded address":          {"login", jane, "From: =?utf-8?q?joe=40example.net?=", "550 5.7.1"},
		"a source route":              {"login", jane, "From: <@example.net:joe@example.net>", "550 5.7.1"},
		"a domain that looks alike":   {"domain", jane, "From: joe@ex\u0430mple.net", "550 5.7.1"},
		"an empty group":              {"login", jane, "From: joe@example.net:;", "550 5.7.1"},
	} {
		t.Run(name, func(t *testing.T) {
			p := servers[tt.rule].greeted()
			p.say("AUTH PLAIN "+b64("\x00jane\x00secret"), "235")
			p.mail(tt.sender, "b@example.com", tt.header+"\n\nx\n", tt.reply)
		})
	}
}

// Op10: the router's answer about router.star is the reply to the content; it is asked where there
// is a program alone, and its absence is not a refusal.
func TestOp10AnswerAboutTheProgramIsTheReply(t *testing.T) {
	const child = "#!/bin/sh\necho 'zmailer rcpt-check 1'\nwhile read id what len size; do\n" +
		"case $what in message) head=$(head -c $((len + 1)));\n" +
		"case $head in *X-Bad*) echo \"$id refused 5.7.9 bad\";; *X-End*) exit 1;; *) echo \"$id known - \";; esac;;\n" +
		"generation) echo \"$id generation - a 60\";; *) echo \"$id known - \";; esac; done\n"
	for name, tt := range map[string]struct {
		program  bool
		deferred bool
		header   string
		reply    string
	}{
		"rejected":                     {true, false, "X-Bad: 1", "550 5.7.9 bad"},
		"not rejected":                 {true, false, "X-Good: 1", "250"},
		"no program":                   {false, false, "X-Bad: 1", "250"},
		"a router that ends":           {true, false, "X-End: 1", "250"},
		"a router that ends, deferred": {true, true, "X-End: 1", "451 4.3.0"},
	} {
		t.Run(name, func(t *testing.T) {
			texts := map[string]string{"child": child}
			if tt.program {
				texts["router.star"] = "def message(m): pass\n"
			}
			dir := files(t, texts)
			r := start(t, func(c *Config) {
				c.Access.Dir = dir
				c.Access.RcptCheck = &policy.RcptCheck{Defer: tt.deferred}
				c.Access.RcptCheck.Program = []string{"/bin/bash", dir + "/child"}
			})
			r.greeted().mail("a@example.net", "b@example.com", tt.header+"\n\ntext\n", tt.reply)
		})
	}
}

// Op10: what rules change below the header is changed when signatures were checked and before
// filters see the message, as in Postfix's cleanup(8); what else they decide is done as well.
func TestOp10RulesChangeTheContentBetweenChecksAndFilters(t *testing.T) {
	key := checkstest.Ed25519(t)
	_, server := checkstest.Serve(t, checkstest.TXT("s._domainkey.a.example", key.Record))
	signed := key.Sign(t, "From: a@a.example\nSubject: x\n\nsecret\nhi\n", "a.example", "s", true)
	f := filter(t, &miltertest.Filter{})
	r := contentRuled(t, map[string]string{contentrules.BodyFile: "/(sec)ret/ REPLACE $1*** é\n/^go to (.*)/ PREPEND gone to $1\n/^x+$/ IGNORE\n/^\\*/ FILTER smtp:[127.0.0.1]:9\n/^away/ REDIRECT other@example.net\n" +
		"/^copy/ BCC copy@example.net\n/^gone/ DISCARD what a rule wrote is not looked at\n"}, func(c *Config) {
		allChecks(server)(c)
		with(f)(c)
		c.Limits.MaxSize = 1 << 20
	})
	p := r.greeted()
	p.mail("a@a.example", toUs, signed, "250")
	got := r.only("rules edited")
	assert.Contains(t, got, "dkim=pass")
	assert.Contains(t, got, "\n\nsec*** é\nhi\n")
	assert.Contains(t, heard(f), "|body sec*** é\r\nhi")
	assert.Contains(t, r.log.String(), "msg=changed")
	assert.Contains(t, r.log.String(), "body-rules:1")
	for body, lines := range map[string][]string{
		"go to a\nsecret\n":           {"rules edited", "to <" + toUs + ">"},
		"secret\naway\n":              {"rules edited", "to <other@example.net>"},
		"secret\n* one\n":             {"rules edited", "filter smtpx!127.0.0.1:9"},
		"secret\ncopy\n":              {"rules edited", "to <" + toUs + ">", "to <copy@example.net>"},
		"away\n":                      {"rules followed", "to <" + toUs + ">"}, // the router's
		strings.Repeat("secret\n", 9): {"rules edited"},
		"x\n" + strings.Repeat("text\n", 100_000): {"rules edited"}, // in a file
		"x\n": {"rules edited"},
	} {
		r.clear()
		p.mail("a@a.example", toUs, "Subject: secret\n\n"+body, "250")
		_, content, _ := strings.Cut(r.only(lines...), "\n\n")
		assert.Equal(t, content, strings.NewReplacer("secret", "sec*** é", "go to a", "gone to a\ngo to a", "x\n", "").Replace(body))
	}
	// It may grow up to MAXSIZE.
	r.clear()
	p.from("a@a.example").to(toUs).content("Subject: x\n\n"+strings.Repeat(strings.Repeat("y", 90)+"\n", 11_000)+"--\n", "250")
	r.clear()
	growing := contentRuled(t, map[string]string{contentrules.BodyFile: "/^y/ PREPEND " + strings.Repeat("z", 100) + "\n"}, func(c *Config) { c.Limits.MaxSize, c.BodyRulesSize = 1<<20, 1<<30 })
	p = growing.greeted()
	p.from("a@a.example").to(toUs).content("Subject: x\n\n"+strings.Repeat(strings.Repeat("y", 90)+"\n", 6_000), "552 5.3.4")
	growing.nothing()
	p.mail("a@a.example", toUs, "Subject: x\n\ny\n", "250")
}
