package tasmtp

import (
	"crypto/sha256"
	"fmt"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"zmailer/internal/stage/tasmtp/mx/mxtest"
	. "zmailer/internal/stage/tasmtp/tasmtptest"
	"zmailer/internal/wire/taproto"
	"zmailer/test/peer"
)

// RFC 7672: what TLSA records make of a server, by level. The certificate is of an
// authority that no one knows.
func TestDANE(t *testing.T) {
	ca := peer.NewCA(t, "own")
	cert := ca.Issue("mx.there.test")
	key := sha256.Sum256(cert.Leaf.RawSubjectPublicKeyInfo)
	authority := sha256.Sum256(ca.Cert.Raw)
	right := fmt.Sprintf("3 1 1 %x", key)
	wrong := fmt.Sprintf("3 1 1 %x", sha256.Sum256([]byte("x")))
	anchor := fmt.Sprintf("2 0 1 %x", authority)
	const clear, secure = "in the clear", "under TLS"
	all := func(s *mxtest.Server) { s.Sign("there.test") }
	cases := map[string]struct {
		record string
		sign   func(*mxtest.Server)
		level  string
		noTLS  bool
		want   string
	}{
		"the key of the record":                {right, all, "dane", false, secure},
		"another key":                          {wrong, all, "dane", false, "no TLSA record fits what the server has shown: 3 1 1"},
		"no STARTTLS though there is a record": {right, all, "dane", true, "the server does not offer STARTTLS, and TLS is wanted"},
		"the authority of the record":          {anchor, all, "dane", false, secure},
		"a record that cannot be used":         {fmt.Sprintf("1 1 1 %x", key), all, "dane", false, secure},
		"the same, no STARTTLS":                {fmt.Sprintf("1 1 1 %x", key), all, "dane", true, "the server does not offer STARTTLS, and TLS is wanted"},
		"no record":                            {"", all, "dane", true, clear},
		"nothing is signed":                    {wrong, func(*mxtest.Server) {}, "dane", false, secure},
		"nothing is signed, no STARTTLS":       {wrong, func(*mxtest.Server) {}, "dane", true, clear},
		"MX records are not signed":            {wrong, func(s *mxtest.Server) { s.Sign("mx.there.test") }, "dane", true, clear},
		"the name server of the record fails":  {right, all, "dane", false, "SERVFAIL"},
		"dane-only, the key of the record":     {right, all, "dane-only", false, secure},
		"dane-only, no record":                 {"", all, "dane-only", false, "has no TLSA records that are secure, and they are wanted"},
		"dane-only, nothing is signed":         {right, func(*mxtest.Server) {}, "dane-only", false, "has no TLSA records that are secure"},
		"dane-only, no record can be used":     {fmt.Sprintf("1 1 1 %x", key), all, "dane-only", false, "no TLSA record of mx.there.test can be used"},
		"sts looks for records first":          {wrong, all, "sts", false, "no TLSA record fits"},
		"may does not look for records":        {wrong, all, "may", false, secure},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			sink := (&Sink{TLS: serverTLS(cert)}).Start(t, "", "")
			if c.noTLS {
				sink.TLS = nil
			}
			zone := tlsZone
			if c.record != "" {
				zone += fmt.Sprintf("_%d._tcp.mx.there.test. 300 IN TLSA %s\n", sink.Port(), c.record)
			}
			s, names := tlsStation(t, sink, zone, "there.test "+c.level)
			c.sign(names)
			if strings.Contains(name, "fails") {
				names.Fail(fmt.Sprintf("_%d._tcp.mx.there.test", sink.Port()), dns.RcodeServerFailure, 99)
			}
			got := s.one("smtp", "there.test")
			if c.want == clear || c.want == secure {
				if got.Word != taproto.OK3 || under(sink) != c.want {
					t.Errorf("got %+v, %s, want %s", got, under(sink), c.want)
				}
				return
			}
			if got.Word != taproto.DeferAll || !strings.Contains(got.Text, c.want) || len(sink.Messages()) > 0 {
				t.Errorf("got %+v, %s, want %q", got, under(sink), c.want)
			}
		})
	}
}

// A name server elsewhere is not trusted: dane-only names that as the reason, dane goes on without.
func TestDANENeedsATrustedNameServer(t *testing.T) {
	sink := (&Sink{}).Start(t, "", "")
	for level, want := range map[string]string{"dane": "250 2.0.0 queued", "dane-only": "the name server is not on this machine"} {
		s, _ := tlsStation(t, sink, tlsZone, "there.test "+level, func(c *Config) {
			c.Resolver = strings.Replace(c.Resolver, "127.0.0.1", "localhost", 1) // a name may be any machine
		})
		if got := s.one("smtp", "there.test"); !strings.Contains(got.Text, want) {
			t.Errorf("%s: got %+v, want %q", level, got, want)
		}
	}
}

// One server whose certificate is not the record's does not keep mail from the next.
func TestNextServerIsTriedWhenTLSFails(t *testing.T) {
	ca := peer.NewCA(t, "own")
	bad := (&Sink{TLS: serverTLS(ca.Issue("bad.there.test"))}).Start(t, "tcp", "127.0.0.1:0")
	good := (&Sink{TLS: serverTLS(ca.Issue("good.there.test"))}).Start(t, "tcp", fmt.Sprintf("127.0.0.2:%d", bad.Port()))
	s, _ := tlsStation(t, bad, `
there.test.      300 IN MX 10 bad.there.test.
there.test.      300 IN MX 20 good.there.test.
bad.there.test.  300 IN A  127.0.0.1
good.there.test. 300 IN A  127.0.0.2
`, "there.test verify match=good.there.test", func(c *Config) { c.Security.Roots = ca.Pool() })
	if got := s.one("smtp", "there.test"); got.Word != taproto.OK3 || under(good) != "under TLS" || len(bad.Messages()) > 0 {
		t.Errorf("got %+v; %s", got, under(good))
	}
}
