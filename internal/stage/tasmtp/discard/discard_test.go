package discard

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"zmailer/internal/run/assert"
	"zmailer/internal/run/config"
)

// Net5: the first line that is for a destination or for a server's address counts.
func TestNet5FirstLineCounts(t *testing.T) {
	table, err := Parse("discard-ehlo-keywords", []byte(`# comment
192.0.2.7            pipelining
192.0.2.0/24         dsn, 8bitmime
2001:db8::/32        Size silent-discard
smtp/*.example.com   PIPELINING chunking
*/[127.0.0.1]:2525   starttls
smtp*/exact.test     etrn
`))
	assert.Must(t, err)
	for name, c := range map[string]struct{ channel, host, addr, want string }{
		"an address":              {"smtp", "x.test", "192.0.2.7", "PIPELINING"},
		"an address, mapped":      {"smtp", "x.test", "::ffff:192.0.2.7", "PIPELINING"},
		"a network":               {"smtp", "x.test", "192.0.2.8", "DSN 8BITMIME"},
		"a network of IPv6":       {"smtp", "x.test", "2001:db8::1", "SIZE"},
		"a host":                  {"smtp", "A.Example.COM", "198.51.100.1", "PIPELINING"},
		"another channel":         {"lmtp", "a.example.com", "198.51.100.1", ""},
		"a host in brackets":      {"lmtp", "[127.0.0.1]:2525", "127.0.0.1", "STARTTLS"},
		"a host, address first":   {"smtp", "a.example.com", "192.0.2.9", "DSN 8BITMIME"},
		"nothing that is of use":  {"smtpx", "exact.test", "198.51.100.1", ""},
		"none":                    {"smtp", "x.test", "198.51.100.1", ""},
		"a socket has no address": {"lmtp", "unix:/run/lmtp", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			addr, _ := netip.ParseAddr(c.addr)
			assert.Same(t, table.Match(c.channel, c.host, addr), strings.Fields(c.want))
		})
	}
	if got := (*Table)(nil).Match("smtp", "x.test", netip.Addr{}); got != nil {
		t.Errorf("no table: got %q", got)
	}
}

// Net5: every line that cannot be used is reported with its place.
func TestNet5EachWrongLineIsReported(t *testing.T) {
	_, err := Parse("f", []byte("192.0.2.1 pipelinning\nexample.com pipelining\n192.0.2.0/33 dsn\nsmtp/x\n::ffff:192.0.2.0/120 dsn\nsmtp/x dsn\n\xff/x dsn\n"))
	var places []int
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		t.Fatalf("got %v", err)
	}
	for _, e := range joined.Unwrap() {
		c := (*config.Error)(nil)
		if !errors.As(e, &c) || c.File != "f" || c.Column == 0 {
			t.Fatalf("got %v", e)
		}
		places = append(places, c.Line)
	}
	assert.Same(t, places, []int{1, 2, 3, 4, 5, 7}, "lines")
}

func FuzzParse(f *testing.F) {
	f.Add([]byte("192.0.2.0/24 dsn\nsmtp/* pipelining, size\n"))
	f.Add([]byte("/ /\n[::1] auth\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		table, err := Parse("f", b)
		if (table == nil) == (err == nil) {
			t.Fatalf("got %v and %v", table, err)
		}
		for _, k := range table.Match("smtp", "x.test", netip.MustParseAddr("192.0.2.1")) {
			if !slices.Contains(keywords, k) {
				t.Errorf("got %q", k)
			}
		}
	})
}
