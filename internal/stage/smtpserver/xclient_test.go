package smtpserver

import (
	"net/netip"
	"strings"
	"testing"
	"unicode"
)

func TestXCLIENTSpeaksForAnother(t *testing.T) {
	r := start(t, func(c *Config) { c.XClientNets = loopback })
	p := r.dial()
	if got := p.say("EHLO proxy", "250"); !strings.Contains(got, xclientOffer) {
		t.Errorf("EHLO: %q", got)
	}
	p.say("MAIL FROM:<a@b>", "250")
	p.say("XCLIENT ADDR=203.0.113.9", "503 5.5.1")
	p.say("RSET", "250")
	p.say("XCLIENT", "501 5.5.4")
	p.say("XCLIENT ADDR=203.0.113.9 COLOUR=blue", "501 5.5.4")
	p.say("XCLIENT ADDR=203.0.113.9 NAME=mail.example.net PORT=40000 HELO=c.example.net", "220 mx.example.org")
	// All is as at the beginning, for the other client.
	p.say("MAIL FROM:<a@b>", "502")
	p.say("EHLO proxy", "250")
	p.say("MAIL FROM:<a@example.net>", "250")
	p.say("RCPT TO:<b@elsewhere.example>", "550 5.7.1")
	p.say("RCPT TO:<b@mx.example.org>", "250")
	p.say("DATA", "354")
	p.say("x\r\n.", "250")
	if got := r.only(); !strings.Contains(got, "rcvdfrom c.example.net (mail.example.net [203.0.113.9]:40000)\n") {
		t.Errorf("got\n%s", got)
	}
	// The peer may still say so: it is asked for its own address.
	p.say("XCLIENT ADDR=IPV6:2001:db8::9 LOGIN=ann", "220")
	p.say("EHLO c", "250")
	p.say("MAIL FROM:<a@example.net>", "250")
	if got := r.log.String(); !strings.Contains(got, `msg=xclient peer=127.0.0.1:`) || !strings.Contains(got, "user=ann") {
		t.Errorf("log:\n%s", got)
	}
}

func TestXCLIENTIsOffUnlessTold(t *testing.T) {
	r := start(t, func(c *Config) { c.XClientNets = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")} })
	p := r.dial()
	if got := p.say("EHLO c", "250"); strings.Contains(got, "XCLIENT") {
		t.Errorf("EHLO: %q", got)
	}
	p.say("XCLIENT ADDR=192.0.2.1", "550 5.7.0")
}

func TestXCLIENTAttributes(t *testing.T) {
	was := client{addr: netip.MustParseAddrPort("127.0.0.1:9"), name: "localhost", helo: "proxy", user: "root", role: RoleMX}
	at := func(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }
	for name, test := range map[string]struct {
		arg  string
		want client
		bad  string
	}{
		"only a name":              {arg: "NAME=x.example", want: client{addr: was.addr, name: "x.example", helo: "proxy", user: "root"}},
		"another address":          {arg: "addr=192.0.2.1", want: client{addr: at("192.0.2.1:0")}},
		"order does not matter":    {arg: "PORT=7 NAME=x LOGIN=ann ADDR=192.0.2.1", want: client{addr: at("192.0.2.1:7"), name: "x", user: "ann"}},
		"IPv6":                     {arg: "ADDR=IPV6:2001:db8::1", want: client{addr: at("[2001:db8::1]:0")}},
		"IPv4 in IPv6":             {arg: "ADDR=IPv6:::ffff:192.0.2.1", want: client{addr: at("192.0.2.1:0")}},
		"unavailable":              {arg: "ADDR=[UNAVAILABLE] NAME=[TEMPUNAVAIL]", want: client{addr: unknownClient}},
		"xtext":                    {arg: "LOGIN=ann+40example.net HELO=+3Dx", want: client{addr: was.addr, name: "localhost", helo: "=x", user: "ann@example.net"}},
		"nobody":                   {arg: "LOGIN=[UNAVAILABLE]", want: client{addr: was.addr, name: "localhost", helo: "proxy"}},
		"what is not asked for":    {arg: "PROTO=ESMTP DESTADDR=192.0.2.2 DESTPORT=25", want: client{addr: was.addr, name: "localhost", helo: "proxy", user: "root"}},
		"no value":                 {arg: "ADDR", bad: "no attribute"},
		"no address":               {arg: "ADDR=localhost", bad: "no address"},
		"a zone":                   {arg: "ADDR=IPV6:fe80::1%eth0", bad: "no address"},
		"no port":                  {arg: "PORT=65536", bad: "no port"},
		"no name":                  {arg: "NAME=a(b", bad: "no host name"},
		"a line end":               {arg: "HELO=x+0D+0Ay", bad: "control character"},
		"half a quote":             {arg: "HELO=x+4", bad: "without two digits"},
		"too long":                 {arg: "HELO=" + strings.Repeat("x", 256), bad: "longer"},
		"another protocol":         {arg: "PROTO=HTTP", bad: "SMTP or ESMTP"},
		"an attribute of tomorrow": {arg: "SHOE=42", bad: "not known here"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := parseXCLIENT(test.arg, was)
			if test.bad != "" {
				if err == nil || !strings.Contains(err.Error(), test.bad) {
					t.Errorf("got %v, want %q", err, test.bad)
				}
				return
			}
			if test.want.role = was.role; err != nil || got != test.want {
				t.Errorf("got %+v, %v, want %+v", got, err, test.want)
			}
		})
	}
}

func FuzzXCLIENT(f *testing.F) {
	for _, seed := range []string{"ADDR=192.0.2.1 NAME=a.b PORT=1 HELO=x LOGIN=ann+40b PROTO=SMTP", "ADDR=IPV6:::1", "NAME=[UNAVAILABLE]", "=+", "a=+0D"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, arg string) {
		c, err := parseXCLIENT(arg, client{addr: netip.MustParseAddrPort("127.0.0.1:9")})
		if err != nil {
			return
		}
		for _, text := range []string{c.name, c.user, c.helo, literal(c.addr), c.String()} {
			if len(text) > maxAttribute || strings.ContainsFunc(text, func(r rune) bool { return r < 0x80 && unicode.IsControl(r) }) {
				t.Errorf("%q", text)
			}
		}
		if !c.addr.IsValid() || c.addr.Addr().Zone() != "" {
			t.Errorf("address %v", c.addr)
		}
	})
}
