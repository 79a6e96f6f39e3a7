package session

import (
	"crypto/tls"
	"crypto/x509"
	"net/netip"
	"strings"
	"testing"
	"unicode"
)

func TestXCLIENTAttributes(t *testing.T) {
	was := Client{Addr: netip.MustParseAddrPort("127.0.0.1:9"), Name: "localhost", Helo: "proxy", Mechanism: "XCLIENT", User: "root", Role: RoleMX}
	at := func(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }
	for name, test := range map[string]struct {
		arg  string
		want Client
		bad  bool
	}{
		"only a name":              {arg: "NAME=x.example", want: Client{Addr: was.Addr, Name: "x.example", Helo: "proxy", Mechanism: "XCLIENT", User: "root"}},
		"another address":          {arg: "addr=192.0.2.1", want: Client{Addr: at("192.0.2.1:0")}},
		"order does not matter":    {arg: "PORT=7 NAME=x LOGIN=ann ADDR=192.0.2.1", want: Client{Addr: at("192.0.2.1:7"), Name: "x", Mechanism: "XCLIENT", User: "ann"}},
		"IPv6":                     {arg: "ADDR=IPV6:2001:db8::1", want: Client{Addr: at("[2001:db8::1]:0")}},
		"IPv4 in IPv6":             {arg: "ADDR=IPv6:::ffff:192.0.2.1", want: Client{Addr: at("192.0.2.1:0")}},
		"unavailable":              {arg: "ADDR=[UNAVAILABLE] NAME=[TEMPUNAVAIL]", want: Client{Addr: UnknownClient()}},
		"xtext":                    {arg: "LOGIN=ann+40example.net HELO=+3Dx", want: Client{Addr: was.Addr, Name: "localhost", Helo: "=x", Mechanism: "XCLIENT", User: "ann@example.net"}},
		"nobody":                   {arg: "LOGIN=[UNAVAILABLE]", want: Client{Addr: was.Addr, Name: "localhost", Helo: "proxy"}},
		"ignored":                  {arg: "PROTO=ESMTP DESTADDR=192.0.2.2 DESTPORT=25", want: Client{Addr: was.Addr, Name: "localhost", Helo: "proxy", Mechanism: "XCLIENT", User: "root"}},
		"no value":                 {arg: "ADDR", bad: true},
		"no address":               {arg: "ADDR=localhost", bad: true},
		"a zone":                   {arg: "ADDR=IPV6:fe80::1%eth0", bad: true},
		"no port":                  {arg: "PORT=65536", bad: true},
		"no name":                  {arg: "NAME=a(b", bad: true},
		"a line end":               {arg: "HELO=x+0D+0Ay", bad: true},
		"half a quote":             {arg: "HELO=x+4", bad: true},
		"too long":                 {arg: "HELO=" + strings.Repeat("x", 256), bad: true},
		"another protocol":         {arg: "PROTO=HTTP", bad: true},
		"an attribute of tomorrow": {arg: "SHOE=42", bad: true},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := parseXCLIENT(test.arg, was)
			if test.bad {
				if err == nil {
					t.Errorf("got %+v, want an error", got)
				}
				return
			}
			if test.want.Role = was.Role; err != nil || got != test.want {
				t.Errorf("got %+v, %v, want %+v", got, err, test.want)
			}
		})
	}
}

// A proxy that shows a certificate may do more than its clients, who are not it.
func TestXCLIENTLeavesTheCertificateToThePeer(t *testing.T) {
	state := &tls.ConnectionState{Version: tls.VersionTLS13, PeerCertificates: []*x509.Certificate{{}}, VerifiedChains: [][]*x509.Certificate{{{}}}}
	was := Client{Addr: netip.MustParseAddrPort("127.0.0.1:9"), TLS: state}
	for arg, shown := range map[string]bool{"ADDR=192.0.2.1": false, "ADDR=[UNAVAILABLE]": false, "NAME=x.example": true} {
		got, err := parseXCLIENT(arg, was)
		if err != nil || got.TLS == nil || got.TLS.Version != tls.VersionTLS13 || len(got.TLS.PeerCertificates) > 0 != shown || len(got.TLS.VerifiedChains) > 0 != shown {
			t.Errorf("%s: %+v, %v; the certificate is to be there: %v", arg, got.TLS, err, shown)
		}
	}
	if len(state.PeerCertificates) != 1 {
		t.Error("the connection's own state has changed")
	}
}

func FuzzXCLIENT(f *testing.F) {
	for _, seed := range []string{"ADDR=192.0.2.1 NAME=a.b PORT=1 HELO=x LOGIN=ann+40b PROTO=SMTP", "ADDR=IPV6:::1", "NAME=[UNAVAILABLE]", "=+", "a=+0D"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, arg string) {
		c, err := parseXCLIENT(arg, Client{Addr: netip.MustParseAddrPort("127.0.0.1:9")})
		if err != nil {
			return
		}
		for _, text := range []string{c.Name, c.User, c.Helo, c.String()} {
			if len(text) > maxAttribute || strings.ContainsFunc(text, func(r rune) bool { return r < 0x80 && unicode.IsControl(r) }) {
				t.Errorf("%q", text)
			}
		}
		if !c.Addr.IsValid() || c.Addr.Addr().Zone() != "" {
			t.Errorf("address %v", c.Addr)
		}
	})
}
