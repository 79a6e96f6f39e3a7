package smtpserver

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pires/go-proxyproto"

	"zmailer/internal/postoffice"
	"zmailer/internal/run/assert"
	"zmailer/internal/stage/smtpserver/content/checks/checkstest"
	"zmailer/internal/stage/smtpserver/listen"
	"zmailer/internal/stage/smtpserver/session"
)

// version2 returns a header of version 2 for a client.
func version2(t testing.TB, client string) string {
	t.Helper()
	a := netip.MustParseAddrPort(client)
	to := &net.TCPAddr{IP: net.IPv4(192, 0, 2, 25), Port: 25}
	if a.Addr().Is6() {
		to.IP = net.ParseIP("2001:db8::25")
	}
	b := assert.Get(proxyproto.HeaderProxyFromAddrs(2, net.TCPAddrFromAddrPort(a), to).Format())(t)
	return string(b)
}

const (
	// local2 is a proxy that checks whether we are alive.
	local2 = "\r\n\r\n\x00\r\nQUIT\n\x20\x00\x00\x00"
	// unspec2 is a client whose address the proxy does not name.
	unspec2 = "\r\n\r\n\x00\r\nQUIT\n\x21\x00\x00\x03\x04\x00\x00"
	proxied = "PROXY TCP4 203.0.113.9 192.0.2.25 40000 25\r\n"
)

// Rules and Received lines have the client that the header names.
func TestProxyNamesTheClient(t *testing.T) {
	for name, test := range map[string]struct{ header, from string }{
		"version 1, IPv4":     {proxied, "([203.0.113.9]:40000)"},
		"version 1, IPv6":     {"PROXY TCP6 2001:db8::9 2001:db8::25 40000 25\r\n", "([IPv6:2001:db8::9]:40000)"},
		"version 1, unknown":  {"PROXY UNKNOWN\r\n", "(unknown)"},
		"unknown, with words": {"PROXY UNKNOWN ffff::1 ffff::2 1 2\r\n", "(unknown)"},
		"version 2, IPv4":     {version2(t, "203.0.113.9:40000"), "([203.0.113.9]:40000)"},
		"version 2, IPv6":     {version2(t, "[2001:db8::9]:40000"), "([IPv6:2001:db8::9]:40000)"},
		"version 2, unspec":   {unspec2, "(unknown)"},
		"the proxy itself":    {local2, ""},
	} {
		t.Run(name, func(t *testing.T) {
			r := start(t, func(c *Config) { c.ProxyNets = loopback })
			p := r.connect(0)
			for i := range len(test.header) { // in as many segments as it likes
				p.send(test.header[i : i+1])
			}
			p.expect("220")
			p.say("EHLO c", "250")
			p.from("a@example.net")
			// The proxy's address may relay, the client's may not.
			if test.from == "" {
				p.to("b@elsewhere.example")
				return
			}
			p.say("RCPT TO:<b@elsewhere.example>", "550 5.7.1")
			p.to(toUs).content(plain, "250")
			r.only("rcvdfrom c " + test.from)
		})
	}
}

// What follows the header in the same segment is the client's; TLS may be.
func TestProxyHeaderTakesNoMoreThanItself(t *testing.T) {
	r := startSecured(t, func(c *Config) { c.ProxyNets = loopback })
	for _, header := range []string{proxied, version2(t, "203.0.113.9:40000")} {
		p := r.connect(0)
		p.send(header + "EHLO c\r\nNOOP\r\n")
		p.expect("220", "250", "250")
		p = r.connect(2)
		p.send(header)
		p.secure(r.tls)
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
			p := r.connect(0)
			p.send(said)
			if b, _ := io.ReadAll(p.r); len(b) > 0 {
				t.Errorf("got %q", b)
			}
			r.log.Await(t, "msg=proxy-refused")
		})
	}
}

// M40: the name is one that leads back to the address.
func TestHostNameIsVerifiedForward(t *testing.T) {
	_, zone := checkstest.Serve(t,
		"9.113.0.203.in-addr.arpa. PTR mail.example.net.", "mail.example.net. A 203.0.113.9",
		"10.113.0.203.in-addr.arpa. PTR mail.example.net.", // names another one
		"11.113.0.203.in-addr.arpa. PTR nowhere.example.net.",
		"9.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.8.b.d.0.1.0.0.2.ip6.arpa. PTR six.example.net.",
		"six.example.net. AAAA 2001:db8::9")
	for addr, want := range map[string]string{
		"203.0.113.9": "mail.example.net", "203.0.113.10": "", "203.0.113.11": "", "203.0.113.12": "", "2001:db8::9": "six.example.net",
	} {
		assert.Equal(t, listen.HostName(t.Context(), zone, netip.MustParseAddr(addr)), want, addr)
	}
	done, cancel := context.WithCancel(t.Context())
	cancel()
	assert.Equal(t, listen.HostName(done, zone, netip.MustParseAddr("203.0.113.9")), "", "too late")
	r := start(t, func(c *Config) { c.ReverseLookup, c.Resolver, c.ProxyNets = true, zone, loopback })
	p := r.connect(0)
	p.send(proxied)
	p.expect("220")
	p.say("EHLO client.example.net", "250")
	p.begin().content(plain, "250")
	r.only("rcvdfrom client.example.net (mail.example.net [203.0.113.9]:40000)")
}

func TestXCLIENTNamesAnotherClient(t *testing.T) {
	r := start(t, func(c *Config) { c.XClientNets = loopback })
	p := r.dial()
	offers(t, p.say("EHLO proxy", "250"), "XCLIENT NAME ADDR PORT PROTO HELO LOGIN", true)
	p.from("a@b")
	p.say("XCLIENT ADDR=203.0.113.9", "503 5.5.1")
	p.say("RSET", "250")
	p.say("XCLIENT", "501 5.5.4")
	p.say("XCLIENT ADDR=203.0.113.9 COLOUR=blue", "501 5.5.4")
	p.say("XCLIENT ADDR=203.0.113.9 NAME=mail.example.net PORT=40000 HELO=c.example.net", "220 mx.example.org")
	// All is as at the beginning, for the other client.
	p.say("MAIL FROM:<a@b>", "503")
	p.say("EHLO proxy", "250")
	p.from("a@example.net").say("RCPT TO:<b@elsewhere.example>", "550 5.7.1")
	p.to(toUs).content(plain, "250")
	r.only("rcvdfrom c.example.net (mail.example.net [203.0.113.9]:40000)")
	// The peer may still use it: its own address counts.
	p.say("XCLIENT ADDR=IPV6:2001:db8::9 LOGIN=ann", "220")
	p.say("EHLO c", "250")
	if r.log.Count("msg=xclient peer=127.0.0.1:", "user=ann") != 1 {
		t.Error("no log line")
	}
}

// lmtp connects to the port that was added last.
func (r *running) lmtp() *client {
	r.t.Helper()
	p := r.connect(len(r.addrs) - 1)
	p.expect("220")
	return p
}

// withLMTP serves LMTP at a Unix socket beside SMTP.
func withLMTP(t *testing.T) func(*Config) {
	path := filepath.Join(t.TempDir(), "lmtp")
	return func(c *Config) { c.Listen[session.RoleLMTP] = []string{path} }
}

// RFC 2033 section 4.2: one message file, and a reply for each recipient, by DATA and by
// BDAT. A message that is given up between chunks gets no reply of its own, and one without
// recipients no 354.
func TestLMTPAnswersEachRecipient(t *testing.T) {
	for name, tt := range map[string]struct {
		content string
		first   string
	}{
		"DATA": {"DATA\r\nSubject: x\r\n\r\nbody\r\n.\r\n", "354"},
		"BDAT": {"BDAT 14\r\nSubject: x\r\n\r\nBDAT 6 LAST\r\nbody\r\n", "250 2.0.0"},
	} {
		t.Run(name, func(t *testing.T) {
			r := start(t, withLMTP(t))
			p := r.lmtp()
			p.say("EHLO c", "500 5.5.1")
			offers(t, p.say("LHLO c", "250-mx.example.org"), "PIPELINING", true)
			p.from("a@example.net").say("DATA", "50")
			p.to(toUs, "d@mx.example.org").chunk("ab\n", "")
			p.send("RSET\r\nNOOP\r\n")
			p.expect("250 2.0.0", "250 2.0.0", "250 2.0.0")
			r.nothing()
			p.from("a@example.net").to(toUs)
			p.say("RCPT TO:<c@elsewhere.example>", "550 5.7.1")
			p.to("d@mx.example.org", toUs).send(tt.content)
			p.expect(tt.first, "250 2.0.0", "250 2.0.0", "250 2.0.0")
			p.say("QUIT", "221")
			r.only("with LMTP", "rcvdfrom c (local)", "to <b@mx.example.org>", "to <d@mx.example.org>", "Subject: x\n\nbody")
		})
	}
}

// A refusal of the content is each recipient's.
func TestLMTPRefusesForEachRecipient(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lmtp")
	r := start(t, func(c *Config) { c.Listen[session.RoleLMTP], c.Limits.MaxSize = []string{path}, 10 })
	p := r.lmtp()
	p.say("LHLO c", "250")
	p.begin().to("d@mx.example.org").content(plain, "552 5.3.4")
	p.expect("552 5.3.4")
	p.say("NOOP", "250")
	r.nothing()
}

// The mode, and that a socket of a dead server is replaced, one of a live one is not.
func TestUnixSocketIsReplacedIfNoServerAnswers(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "lmtp")
	dead := assert.Get(net.Listen("unix", path))(t)
	dead.(*net.UnixListener).SetUnlinkOnClose(false)
	dead.Close()
	r := start(t, func(c *Config) { c.Listen[session.RoleLMTP] = []string{path} })
	info, err := os.Lstat(path)
	if err != nil || info.Mode() != os.ModeSocket|0o660 {
		t.Errorf("got %v, %v", info.Mode(), err)
	}
	second := Config{PostOffice: r.dir, FS: r.disk, Hostname: "mx.example.org", Ports: Ports{Listen: on(session.RoleLMTP, path)}}
	if err := Run(t.Context(), second); err == nil {
		t.Error("a second server takes the socket")
	}
	r.ended()
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left %v, %v", left, err)
	}
	writeFile(t, path, []byte("precious"), 0o600)
	if err := Run(t.Context(), second); err == nil || string(read(t, path)) != "precious" {
		t.Errorf("in place of a file: %v", err)
	}
	if err := Run(t.Context(), Config{PostOffice: filepath.Join(dir, "none"), Ports: Ports{Listen: on(session.RoleLMTP, path)}}); errors.Is(err, postoffice.ErrCrossDevice) || err == nil {
		t.Errorf("no postoffice: %v", err)
	}
}
