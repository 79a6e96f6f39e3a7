package checks

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"zmailer/internal/mail/address"
	"zmailer/internal/run/assert"
	"zmailer/internal/stage/smtpserver/content/checks/checkstest"
)

func mailbox(t testing.TB, s string) address.Mailbox {
	t.Helper()
	return assert.Get(address.Parse("<" + s + ">"))(t)
}

func TestSPFSaysWhatTheDomainSays(t *testing.T) {
	_, server := checkstest.Serve(t,
		`good.example. TXT "v=spf1 ip4:192.0.2.0/24 ip6:2001:db8::/32 -all"`,
		`soft.example. TXT "v=spf1 ~all"`,
		`neutral.example. TXT "v=spf1 ?all"`,
		`mx.example. TXT "v=spf1 mx -all"`,
		`mx.example. MX 10 relay.mx.example.`,
		`relay.mx.example. A 192.0.2.7`,
		`include.example. TXT "v=spf1 include:good.example -all"`,
		`redirect.example. TXT "v=spf1 redirect=good.example"`,
		`loop.example. TXT "v=spf1 include:loop.example -all"`,
		`twice.example. TXT "v=spf1 -all"`, `twice.example. TXT "v=spf1 +all"`,
		`typo.example. TXT "v=spf1 ipv4:192.0.2.1 -all"`,
		`plain.example. TXT "hello"`,
		`behind.example. TXT "v=spf1 include:broken.example -all"`,
		`helo.example. TXT "v=spf1 ip4:192.0.2.7 -all"`,
		`xn--bcher-kva.example. TXT "v=spf1 ip4:192.0.2.7 -all"`,
		`long.example. TXT "v=spf1 `+"ip4:198.51.100.1 ip4:198.51.100.2 ip4:198.51.100.3 ip4:198.51.100.4 ip4:198.51.100.5 ip4:198.51.100.6 "+
			`" "ip4:192.0.2.7 -all"`,
	)
	for name, tt := range map[string]struct {
		client, helo, from string
		want               Value
		domain             string
	}{
		"its network":               {"192.0.2.7", "h", "a@good.example", Pass, "good.example"},
		"mapped to IPv6":            {"::ffff:192.0.2.7", "h", "a@good.example", Pass, "good.example"},
		"IPv6":                      {"2001:db8::1", "h", "a@good.example", Pass, "good.example"},
		"another host":              {"198.51.100.1", "h", "a@good.example", Fail, "good.example"},
		"case does not count":       {"192.0.2.7", "h", "a@GOOD.example", Pass, "good.example"},
		"softfail":                  {"192.0.2.7", "h", "a@soft.example", SoftFail, "soft.example"},
		"neutral":                   {"192.0.2.7", "h", "a@neutral.example", Neutral, "neutral.example"},
		"mx":                        {"192.0.2.7", "h", "a@mx.example", Pass, "mx.example"},
		"include":                   {"192.0.2.7", "h", "a@include.example", Pass, "include.example"},
		"redirect":                  {"198.51.100.1", "h", "a@redirect.example", Fail, "redirect.example"},
		"a record that goes round":  {"192.0.2.7", "h", "a@loop.example", PermError, "loop.example"},
		"two records":               {"192.0.2.7", "h", "a@twice.example", PermError, "twice.example"},
		"a word that is none":       {"192.0.2.7", "h", "a@typo.example", PermError, "typo.example"},
		"no record":                 {"192.0.2.7", "h", "a@plain.example", None, "plain.example"},
		"no such domain":            {"192.0.2.7", "h", "a@nowhere.example", None, "nowhere.example"},
		"server failure":            {"192.0.2.7", "h", "a@broken.example", TempError, "broken.example"},
		"server failure behind":     {"192.0.2.7", "h", "a@behind.example", TempError, "behind.example"},
		"null sender":               {"192.0.2.7", "helo.example", "", Pass, "helo.example"},
		"null sender, wrong host":   {"192.0.2.8", "helo.example", "", Fail, "helo.example"},
		"null sender, literal":      {"192.0.2.7", "[192.0.2.7]", "", None, ""},
		"null sender, hostile":      {"192.0.2.7", "a b\"c;", "", None, ""},
		"IDNA":                      {"192.0.2.7", "h", "ü@bücher.example", Pass, "xn--bcher-kva.example"},
		"an @ in the local part":    {"192.0.2.7", "h", `"x@good.example"@nowhere.example`, None, "nowhere.example"},
		"an @ before a good one":    {"192.0.2.7", "h", `"x@nowhere.example"@good.example`, Pass, "good.example"},
		"domain literal":            {"192.0.2.7", "h", "a@[192.0.2.7]", None, ""},
		"a record in several parts": {"192.0.2.7", "h", "a@long.example", Pass, "long.example"},
		"a single label is no host": {"192.0.2.7", "localhost", "", None, ""},
	} {
		t.Run(name, func(t *testing.T) {
			c := New(Config{SPF: true, Host: "mx.example.org", Server: server})
			got := c.SPF(context.Background(), netip.MustParseAddr(tt.client), tt.helo, mailbox(t, tt.from))
			if got.Value != tt.want || got.Domain != tt.domain {
				t.Errorf("got %+v, want %s of %q", got, tt.want, tt.domain)
			}
		})
	}
}

// A name server that does not answer costs no more than the time that it is given, and the
// result is temporary.
func TestSilentNameServerIsATemporaryError(t *testing.T) {
	_, server := checkstest.Serve(t)
	c := New(Config{SPF: true, Server: server, Timeout: 300 * time.Millisecond})
	ctx, cancel := c.Limit(context.Background())
	defer cancel()
	begin := time.Now()
	got := c.SPF(ctx, netip.MustParseAddr("192.0.2.7"), "h", mailbox(t, "a@silent.example"))
	assert.Equal(t, got.Value, TempError)
	if took := time.Since(begin); took > 4*time.Second {
		t.Errorf("it took %v", took)
	}
}

// A bounce of ours is answered for by its greeting; a client without an address, on a
// Unix socket, by no one.
func TestClientWithoutAddressIsNotAsked(t *testing.T) {
	z, server := checkstest.Serve(t)
	c := New(Config{SPF: true, Server: server})
	if got := c.SPF(context.Background(), netip.Addr{}, "h", mailbox(t, "a@good.example")); got.Value != None {
		t.Errorf("got %+v", got)
	}
	assert.Equal(t, z.Count(), 0)
}
