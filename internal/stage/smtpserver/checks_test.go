package smtpserver

import (
	"runtime"
	"strings"
	"testing"
	"time"

	"zmailer/internal/run/assert"
	"zmailer/internal/stage/smtpserver/content/checks"
	"zmailer/internal/stage/smtpserver/content/checks/checkstest"
)

// allChecks has the server check the mail of all clients, none of whom is in RELAYNETS.
func allChecks(server string) func(*Config) {
	return func(c *Config) {
		c.Access.RelayNets = nil
		c.Access.LocalNamesFile = "" // the built-in one: localhost
		c.Filters.Checks = checks.Config{SPF: true, DKIM: true, DMARC: true, Server: server}
	}
}

func TestResultsOfChecksAreTheFirstField(t *testing.T) {
	key := checkstest.Ed25519(t)
	_, server := checkstest.Serve(t, `a.example. TXT "v=spf1 ip4:127.0.0.1 -all"`, `_dmarc.a.example. TXT "v=DMARC1; p=reject"`,
		checkstest.TXT("s._domainkey.a.example", key.Record))
	const plainText = "From: a@a.example\nSubject: x\n\nhi\n"
	signed := key.Sign(t, plainText, "a.example", "s", true)
	forged := "Authentication-Results: mx.example.org; dmarc=pass\n"
	const top = "Authentication-Results: mx.example.org;\n\t"
	for name, tt := range map[string]struct{ from, message, want string }{
		"all is well": {"a@a.example", signed,
			top + "spf=pass smtp.mailfrom=a@a.example;\n\tdkim=pass header.d=a.example header.i=@a.example;\n\tdmarc=pass header.from=a.example policy.dmarc=reject\n" + signed},
		"another name": {"x@b.example", plainText,
			top + "spf=none smtp.mailfrom=x@b.example;\n\tdkim=none;\n\tdmarc=fail header.from=a.example policy.dmarc=reject\n" + plainText},
		"forged results go, others' stay": {"x@b.example", forged + "Authentication-Results: b.example; spf=pass\n" + plainText,
			top + "spf=none smtp.mailfrom=x@b.example;\n\tdkim=none;\n\tdmarc=fail header.from=a.example policy.dmarc=reject\nAuthentication-Results: b.example; spf=pass\n" + plainText},
		"a header that goes on with ours": {"x@b.example", " ;dkim=pass header.d=a.example\nFrom: a@a.example\n\nhi\n",
			top + "spf=none smtp.mailfrom=x@b.example;\n\tdkim=none;\n\tdmarc=permerror\n\n ;dkim=pass header.d=a.example\nFrom: a@a.example\n\nhi\n"},
		"an mbox file's line": {"x@b.example", "From x Thu\nFrom: a@b.example\n\nhi\n",
			top + "spf=none smtp.mailfrom=x@b.example;\n\tdkim=none;\n\tdmarc=none header.from=b.example\nX-Mailbox-Line: From x Thu\nFrom: a@b.example\n\nhi\n"},
		"a line in the header that is none": {"x@b.example", "From: a@b.example\njunk\n" + forged + "\nhi\n",
			top + "spf=none smtp.mailfrom=x@b.example;\n\tdkim=none;\n\tdmarc=none header.from=b.example\nFrom: a@b.example\njunk\n\nhi\n"},
		"no body":    {"x@b.example", "From: a@b.example\n", top + "spf=none smtp.mailfrom=x@b.example;\n\tdkim=none;\n\tdmarc=none header.from=b.example\nFrom: a@b.example\n"},
		"no header":  {"x@b.example", "\nhi\n", top + "spf=none smtp.mailfrom=x@b.example;\n\tdkim=none;\n\tdmarc=permerror\n\nhi\n"},
		"no DNS":     {"x@broken.example", "From: a@broken.example\n\n", top + "spf=temperror smtp.mailfrom=x@broken.example;\n\tdkim=none;\n\tdmarc=temperror header.from=broken.example\nFrom: a@broken.example\n\n"},
		"null":       {"", plainText, top + "spf=none smtp.helo=client.example.net;\n\tdkim=none;\n\tdmarc=fail header.from=a.example policy.dmarc=reject\n" + plainText},
		"large":      {"a@a.example", signed + strings.Repeat("0123456789\n", 60000), ""},
		"empty":      {"x@b.example", "", top + "spf=none smtp.mailfrom=x@b.example;\n\tdkim=none;\n\tdmarc=permerror\n"},
		"CR forgery": {"x@b.example", "From: a@b.example\nX: y\rAuthentication-Results: mx.example.org; spf=pass\n\n", top + "spf=none smtp.mailfrom=x@b.example;\n\tdkim=none;\n\tdmarc=none header.from=b.example\nFrom: a@b.example\n\n"},
	} {
		t.Run(name, func(t *testing.T) {
			r := start(t, allChecks(server))
			r.greeted().mail(tt.from, toUs, tt.message, "250 2.0.0")
			got := r.content()
			if tt.want == "" {
				tt.want = top + "spf=pass smtp.mailfrom=a@a.example;\n\tdkim=fail header.d=a.example header.i=@a.example;\n\tdmarc=pass header.from=a.example policy.dmarc=reject\n" + tt.message
			}
			assert.Equal(t, got, tt.want)
			assert.Equal(t, len(r.names("public")), 0)
			r.log.Expect(t, 1, "msg=checked")
		})
	}
}

// Mail of our own networks is not checked, and costs no query.
func TestMailFromOurNetworksIsNotChecked(t *testing.T) {
	z, server := checkstest.Serve(t)
	r := start(t, func(c *Config) {
		c.Filters.Checks = checks.Config{SPF: true, DKIM: true, DMARC: true, Server: server}
	})
	const plainText = "Authentication-Results: mx.example.org; none\nFrom: a@a.example\n\nhi\n"
	r.greeted().mail("a@a.example", "x@anywhere.example", plainText, "250")
	assert.Equal(t, r.content(), plainText)
	assert.Equal(t, z.Count(), 0)
}

// The digest of a long message takes no time from the questions to the name server.
func TestDigestTakesNoTimeFromTheNameServer(t *testing.T) {
	key := checkstest.Ed25519(t)
	_, server := checkstest.Serve(t, checkstest.TXT("s._domainkey.a.example", key.Record), `_dmarc.a.example. TXT "v=DMARC1; p=reject"`)
	r := start(t, func(c *Config) { allChecks(server)(c); c.Filters.Checks.Timeout = 400 * time.Millisecond })
	head := key.Sign(t, "From: a@a.example\n\nhi\n", "a.example", "s", true)
	r.greeted().mail("x@b.example", toUs, head+strings.Repeat(strings.Repeat(" x", 500)+"\n", 20000), "250")
	if got := r.content(); !strings.Contains(got[:1000], "dmarc=fail header.from=a.example policy.dmarc=reject") {
		t.Errorf("got %.500s", got)
	}
}

// The rules in access decide by the results; without a rule the policy of a domain
// refuses nothing.
func TestRulesDecideByResults(t *testing.T) {
	_, server := checkstest.Serve(t, `a.example. TXT "v=spf1 -all"`, `_dmarc.a.example. TXT "v=DMARC1; p=reject"`, `_dmarc.q.example. TXT "v=DMARC1; p=quarantine"`)
	dir := files(t, map[string]string{"access": "reject dmarc=fail policy=reject : \"no such thing\"\nfreeze dmarc=fail\ndefer spf=temperror\n"})
	r := start(t, func(c *Config) { allChecks(server)(c); c.Access.Dir = dir })
	p := r.greeted()
	p.mail("a@a.example", toUs, "From: a@a.example\n\nhi\n", "550 5.7.1")
	p.mail("a@broken.example", toUs, "From: a@b.example\n\nhi\n", "450 4.7.1")
	r.nothing()
	p.mail("a@b.example", toUs, "From: a@q.example\n\nhi\n", "250")
	r.frozen("access")
	p.mail("a@b.example", toUs, "From: a@b.example\n\nhi\n", "250")
	r.only()
}

func TestHeaderWithoutEndIsRefused(t *testing.T) {
	_, server := checkstest.Serve(t)
	r := start(t, allChecks(server))
	p := r.greeted().begin().data()
	line := strings.Repeat("x", 64<<10)
	p.send("X: ")
	for range 40 {
		p.send(line)
	}
	p.send("\r\n")
	p.say(".", "552 5.3.4")
	p.mail("x@b.example", toUs, "From: a@b.example\n\nhi\n", "250")
	r.only()
}

// A large message that is held, digested twice and written is never in memory.
func TestLargeMessageIsCheckedInLittleMemory(t *testing.T) {
	key := checkstest.Ed25519(t)
	_, server := checkstest.Serve(t, checkstest.TXT("s._domainkey.a.example", key.Record))
	r := start(t, allChecks(server))
	head := "From: a@a.example\n\nhi\n"
	for range 2 {
		head = key.Sign(t, head, "a.example", "s", true)
	}
	const size = 24 << 20
	p := r.greeted().begin().data()
	p.send(strings.ReplaceAll(head, "\n", "\r\n"))
	piece := strings.Repeat("0123456789abcdef0123456789abcdef0123456789abcdef\r\n", 2000)
	// What is in use: what waits for the collector may be any amount where the machine is busy.
	inUse := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := inUse()
	var most uint64
	look := func() { most = max(most, inUse()) }
	for n := 0; n < size; n += len(piece) {
		p.send(piece)
		if n%(len(piece)*50) == 0 {
			look()
		}
	}
	done := make(chan struct{})
	go func() {
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
				look()
			}
		}
	}()
	p.say(".", "250")
	done <- struct{}{}
	if most > before+(20<<20) {
		t.Errorf("the heap has grown from %d to %d bytes", before, most)
	}
	if got := r.content(); strings.Count(got, "dkim=fail") != 2 || len(got) < size/50*49 {
		t.Errorf("%d bytes, %.500q", len(got), got)
	}
}
