package smtpserver

import (
	"context"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"zmailer/internal/stage/smtpserver/listen"

	"github.com/pires/go-proxyproto"
)

// version2 is a header of version 2 for a client.
func version2(t testing.TB, client string) string {
	t.Helper()
	a := netip.MustParseAddrPort(client)
	to := &net.TCPAddr{IP: net.IPv4(192, 0, 2, 25), Port: 25}
	if a.Addr().Is6() {
		to.IP = net.ParseIP("2001:db8::25")
	}
	b, err := proxyproto.HeaderProxyFromAddrs(2, net.TCPAddrFromAddrPort(a), to).Format()
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// loopback is the network that tests come from.
var loopback = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}

const (
	// local2 is what a proxy says when it looks whether we live.
	local2 = "\r\n\r\n\x00\r\nQUIT\n\x20\x00\x00\x00"
	// unspec2 is a client whose address a proxy does not tell.
	unspec2 = "\r\n\r\n\x00\r\nQUIT\n\x21\x00\x00\x03\x04\x00\x00"
	proxied = "PROXY TCP4 203.0.113.9 192.0.2.25 40000 25\r\n"
)

// The client is whom the header names, for rules and for Received lines.
func TestProxyNamesTheClient(t *testing.T) {
	for name, test := range map[string]struct{ header, from string }{
		"version 1, IPv4":     {proxied, "([203.0.113.9]:40000)"},
		"version 1, IPv6":     {"PROXY TCP6 2001:db8::9 2001:db8::25 40000 25\r\n", "([IPv6:2001:db8::9]:40000)"},
		"version 1, unknown":  {"PROXY UNKNOWN\r\n", "(unknown)"},
		"unknown, with words": {"PROXY UNKNOWN ffff::1 ffff::2 1 2\r\n", "(unknown)"},
		"version 2, IPv4":     {version2(t, "203.0.113.9:40000"), "([203.0.113.9]:40000)"},
		"version 2, IPv6":     {version2(t, "[2001:db8::9]:40000"), "([IPv6:2001:db8::9]:40000)"},
		"version 2, unspec":   {unspec2, "(unknown)"},
	} {
		t.Run(name, func(t *testing.T) {
			r := start(t, func(c *Config) { c.ProxyNets = loopback })
			p := r.connect()
			for i := range len(test.header) { // in as many segments as it likes
				p.send(test.header[i : i+1])
			}
			p.expect("220")
			p.say("EHLO c", "250")
			p.say("MAIL FROM:<a@example.net>", "250")
			// The proxy's address may relay, the client's may not.
			p.say("RCPT TO:<b@elsewhere.example>", "550 5.7.1")
			p.say("RCPT TO:<b@mx.example.org>", "250")
			p.say("DATA", "354")
			p.say("x\r\n.", "250")
			if got := r.only(); !strings.Contains(got, "rcvdfrom c "+test.from+"\n") {
				t.Errorf("no %s in\n%s", test.from, got)
			}
		})
	}
}

func TestProxyMaySpeakForItself(t *testing.T) {
	p := start(t, func(c *Config) { c.ProxyNets = loopback }).connect()
	p.send(local2)
	p.expect("220")
	p.say("EHLO c", "250")
	p.say("MAIL FROM:<a@example.net>", "250")
	p.say("RCPT TO:<b@elsewhere.example>", "250")
}

// What follows the header in the same segment is the client's; TLS may be.
func TestProxyHeaderTakesNoMoreThanItself(t *testing.T) {
	s := startSecured(t, func(c *Config) { c.ProxyNets = loopback })
	for _, header := range []string{proxied, version2(t, "203.0.113.9:40000")} {
		p := s.connect()
		p.send(header + "EHLO c\r\nNOOP\r\n")
		p.expect("220", "250", "250")
		p = s.connectTo("tcp", s.addrs[2].String())
		p.send(header)
		p.secure(s.config())
		p.expect("220")
		p.say("EHLO c", "250")
	}
}

func TestConnectionWithoutProxyHeaderIsClosed(t *testing.T) {
	for name, said := range map[string]string{
		"a client":            "EHLO client.example.net\r\n",
		"no end":              "PROXY TCP4 " + strings.Repeat("1", 200),
		"nonsense behind":     "PROXY TCP4 a b c d\r\n",
		"version 1, too long": "PROXY UNKNOWN " + strings.Repeat("x", 120) + "\r\n",
		"version 1, short":    "PROXY\r\nEHLO client\r\n",
		"version 1, LF":       "PROXY TCP4 203.0.113.9 192.0.2.25 40000 25\n",
		"version 3":           "\r\n\r\n\x00\r\nQUIT\n\x31\x11\x00\x0c\x01\x02\x03\x04\x05\x06\x07\x08\x09\x00\x0b\x0c",
		"UDP":                 "\r\n\r\n\x00\r\nQUIT\n\x21\x12\x00\x0c\x01\x02\x03\x04\x05\x06\x07\x08\x09\x00\x0b\x0c",
		"short address":       "\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x02\x01\x02",
	} {
		t.Run(name, func(t *testing.T) {
			r := start(t, func(c *Config) { c.ProxyNets = loopback })
			p := r.connect()
			p.send(said)
			if b, _ := io.ReadAll(p.r); len(b) > 0 {
				t.Errorf("got %q", b)
			}
			eventually(t, "a line", func() bool { return strings.Contains(r.log.String(), "msg=proxy-refused") })
		})
	}
}

// A header from anywhere else is a command that nobody knows.
func TestProxyHeaderFromOutsideIsNotBelieved(t *testing.T) {
	r := start(t, func(c *Config) { c.ProxyNets = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")} })
	p := r.dial()
	p.say("PROXY TCP4 203.0.113.9 192.0.2.25 40000 25", "50")
	p.say("EHLO c", "250")
	p.say("MAIL FROM:<a@b>", "250")
	p.say("RCPT TO:<b@elsewhere.example>", "250") // as loopback may
}

// M40: the name is one that leads back to the address.
func TestHostNameIsVerifiedForward(t *testing.T) {
	zone := startZone(t, map[string]string{
		"9.113.0.203.in-addr.arpa.": "PTR mail.example.net.", "mail.example.net.": "A 203.0.113.9",
		"10.113.0.203.in-addr.arpa.": "PTR mail.example.net.", // says it is another
		"11.113.0.203.in-addr.arpa.": "PTR nowhere.example.net.",
		"9.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.8.b.d.0.1.0.0.2.ip6.arpa.": "PTR six.example.net.",
		"six.example.net.": "AAAA 2001:db8::9",
	})
	for addr, want := range map[string]string{
		"203.0.113.9": "mail.example.net", "203.0.113.10": "", "203.0.113.11": "", "203.0.113.12": "", "2001:db8::9": "six.example.net",
	} {
		if got := listen.HostName(t.Context(), zone, netip.MustParseAddr(addr)); got != want {
			t.Errorf("%s: got %q, want %q", addr, got, want)
		}
	}
	done, cancel := context.WithCancel(t.Context())
	cancel()
	if got := listen.HostName(done, zone, netip.MustParseAddr("203.0.113.9")); got != "" {
		t.Errorf("too late: got %q", got)
	}
	r := start(t, func(c *Config) { c.ReverseLookup, c.Resolver, c.ProxyNets = true, zone, loopback })
	p := r.connect()
	p.send(proxied)
	p.expect("220")
	p.openTo("b@mx.example.org")
	p.say("x\r\n.", "250")
	if got := r.only(); !strings.Contains(got, "rcvdfrom client.example.net (mail.example.net [203.0.113.9]:40000)\n") {
		t.Errorf("got\n%s", got)
	}
}
