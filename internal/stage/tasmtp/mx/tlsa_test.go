package mx

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/miekg/dns"

	"zmailer/internal/run/assert"
	"zmailer/internal/stage/tasmtp/mx/mxtest"
)

const digest = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

const signedZone = `
signed.test.               300 IN MX    10 mx.signed.test.
mx.signed.test.            300 IN A     192.0.2.1
_25._tcp.mx.signed.test.   300 IN TLSA  3 1 1 ` + digest + `
six.signed.test.           300 IN AAAA  2001:db8::1
_25._tcp.six.signed.test.  300 IN TLSA  3 1 1 ` + digest + `
none.signed.test.          300 IN A     192.0.2.1
alias.signed.test.         300 IN CNAME mx.signed.test.
own.signed.test.           300 IN CNAME none.signed.test.
_25._tcp.own.signed.test.  300 IN TLSA  2 0 1 ` + digest + `
out.signed.test.           300 IN CNAME mx.plain.test.
_25._tcp.out.signed.test.  300 IN TLSA  2 0 1 ` + digest + `
delegated.signed.test.     300 IN A     192.0.2.1
_25._tcp.delegated.signed.test. 300 IN CNAME tlsa.plain.test.
tlsa.plain.test.           300 IN TLSA  3 1 1 ` + digest + `
plain.test.                300 IN MX    10 mx.signed.test.
mx.plain.test.             300 IN A     192.0.2.2
_25._tcp.mx.plain.test.    300 IN TLSA  3 1 1 ` + digest + `
in.plain.test.             300 IN CNAME mx.signed.test.
`

func tlsaOf(r *Resolver, host string) string {
	found, err := r.TLSA(context.Background(), host, 25)
	if err != nil {
		return err.Error()
	}
	if len(found.Records) == 0 {
		return "none"
	}
	return fmt.Sprintf("%s: %v", found.Base, found.Records)
}

// RFC 7672 §2.2
func TestTLSARecordsOfAServer(t *testing.T) {
	const three, two = "[3 1 1 0123456789abcdef]", "[2 0 1 0123456789abcdef]"
	cases := map[string]struct{ host, want string }{
		"secure":                              {"MX.signed.test.", "mx.signed.test: " + three},
		"IPv6 alone":                          {"six.signed.test", "six.signed.test: " + three},
		"secure, without records":             {"none.signed.test", "none"},
		"an alias: at its end":                {"alias.signed.test", "mx.signed.test: " + three},
		"an alias: nothing there, its own":    {"own.signed.test", "own.signed.test: " + two},
		"a secure alias to what is not":       {"out.signed.test", "out.signed.test: " + two},
		"an alias that is not, to what is":    {"in.plain.test", "none"},
		"records by an alias out of the zone": {"delegated.signed.test", "none"},
		"not secure":                          {"mx.plain.test", "none"},
	}
	s := mxtest.Start(t, signedZone)
	s.Sign("signed.test")
	r, _ := resolver(s)
	for name, c := range cases {
		assert.Equal(t, tlsaOf(r, c.host), c.want, name)
	}
	// RFC 7672 §2.2.2: the name servers of zones that are not signed are not asked.
	assert.Equal(t, s.Asked("_25._tcp.mx.plain.test", "TLSA"), 0, "questions for TLSA of a host that is not secure")
	s.Fail("fails.signed.test", dns.RcodeServerFailure, 99)
	for domain, want := range map[string]string{"signed.test": "true <nil>", "plain.test": "false <nil>", "none.signed.test": "true <nil>", "fails.signed.test": "SERVFAIL"} {
		secure, err := r.Secure(context.Background(), domain)
		assert.Contains(t, fmt.Sprint(secure, " ", err), want, domain)
	}
}

func TestTLSALookupThatFailsIsAnError(t *testing.T) {
	s := mxtest.Start(t, signedZone)
	s.Sign("signed.test")
	s.Fail("_25._tcp.mx.signed.test", dns.RcodeServerFailure, 99)
	r, _ := resolver(s)
	assert.Contains(t, tlsaOf(r, "mx.signed.test"), "SERVFAIL")
}

func TestOnlyLocalNameServerIsTrusted(t *testing.T) {
	cases := map[string]struct {
		server string
		trust  bool
		want   bool
	}{
		"IPv4 loopback":     {"127.0.0.1:53", false, true},
		"IPv6 loopback":     {"[::1]:53", false, true},
		"elsewhere":         {"192.0.2.53:53", false, false},
		"elsewhere, trusty": {"192.0.2.53:53", true, true},
		"a name":            {"localhost:53", false, false},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			err := New(Config{Server: c.server, Trust: c.trust}).Trusted()
			if (err == nil) != c.want || err != nil && !errors.Is(err, ErrUntrusted) {
				t.Errorf("got %v, want %v", err, c.want)
			}
		})
	}
}
