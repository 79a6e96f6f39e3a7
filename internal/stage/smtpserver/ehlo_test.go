package smtpserver

import (
	"crypto/tls"
	"strings"
	"testing"

	"github.com/emersion/go-smtp"

	"zmailer/internal/stage/smtpserver/session"
)

// RFC 1870 §5: the size may have twenty digits, and too large is 552, not 501.
func TestLargeSizesAreUnderstood(t *testing.T) {
	for name, test := range map[string]struct {
		limit int64
		param string
		want  string
	}{
		"more than 4 GB, no limit":      {0, "SIZE=5000000000", "250"},
		"more than 4 GB, below limit":   {6 << 30, "BODY=8BITMIME SIZE=5000000000 RET=HDRS", "250"},
		"more than 4 GB, above limit":   {1 << 20, "size=5000000000", "552 5.3.4"},
		"twenty digits":                 {1 << 20, "SIZE=99999999999999999999", "552 5.3.4"},
		"more digits than that":         {1 << 20, "SIZE=999999999999999999999", "501"},
		"no number":                     {1 << 20, "SIZE=1x1111111111", "501"},
		"4 GB less one":                 {0, "SIZE=4294967295", "250"},
		"another parameter with digits": {1 << 20, "ENVID=5000000000 SIZE=5", "250"},
	} {
		t.Run(name, func(t *testing.T) {
			p := start(t, func(c *Config) { c.MaxSize = test.limit }).dial()
			p.say("EHLO c", "250")
			p.say(`MAIL FROM:<"x SIZE=1"@example.net> `+test.param, test.want)
		})
	}
}

// RFC 3848, RFC 6531 §4.3: what the Received line calls the protocol.
func TestProtocolIsNamedAsRegistered(t *testing.T) {
	for want, test := range map[string]struct {
		with string
		tls  bool
		user string
		utf8 bool
	}{
		"SMTP": {with: "SMTP"}, "ESMTP": {with: "ESMTP"}, "ESMTPS": {with: "ESMTP", tls: true},
		"ESMTPA": {with: "ESMTP", user: "ann"}, "ESMTPSA": {with: "ESMTP", tls: true, user: "ann"},
		"LMTP": {with: "LMTP"}, "LMTPS": {with: "LMTP", tls: true}, "LMTPSA": {with: "LMTP", tls: true, user: "ann"},
		"UTF8SMTP": {with: "ESMTP", utf8: true}, "UTF8SMTPS": {with: "ESMTP", utf8: true, tls: true},
		"UTF8SMTPSA": {with: "ESMTP", utf8: true, tls: true, user: "ann"}, "UTF8SMTPA": {with: "ESMTP", utf8: true, user: "ann"},
		"UTF8LMTP": {with: "LMTP", utf8: true}, "UTF8LMTPS": {with: "LMTP", utf8: true, tls: true},
	} {
		c := session.Client{User: test.user}
		if test.tls {
			c.TLS = &tls.ConnectionState{}
		}
		if got := protocolName(&session.Mail{Protocol: test.with, UTF8: test.utf8}, &c); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

// RFC 5321 §4.1.1.1: each greeting begins with our name.
func TestGreetingBeginsWithOurName(t *testing.T) {
	p := start(t, nil).dial()
	p.say("HELO c", "250 mx.example.org greets c\r\n")
	p.say("EHLO <script>", "250-mx.example.org greets ?script?\r\n")
	p.say("EHLO", "501")
	p.say("LHLO c", "500")
	p.say("NOOP", "250")
}

// What go-smtp offers and we do not show is nothing that we have forgotten.
func TestNothingOfTheLibrarysOfferIsLost(t *testing.T) {
	r := start(t, nil)
	p := r.dial()
	ours := p.say("EHLO c", "250")
	for _, word := range []string{"PIPELINING", "8BITMIME", "ENHANCEDSTATUSCODES", "CHUNKING", "SMTPUTF8", "DSN", "SIZE 209715200", "LIMITS RCPTMAX=100"} {
		if !strings.Contains(ours, word+"\r\n") {
			t.Errorf("no %s in %q", word, ours)
		}
	}
	c, err := smtp.Dial(r.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.Hello("c"); err != nil {
		t.Error(err)
	}
	if n, ok := c.MaxMessageSize(); !ok || n != 200<<20 {
		t.Errorf("size %d, %v", n, ok)
	}
}
