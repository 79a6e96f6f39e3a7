package tasmtp

import (
	"crypto/sha256"
	"crypto/tls"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"zmailer/internal/run/assert"
	"zmailer/internal/stage/tasmtp/mx/mxtest"
	. "zmailer/internal/stage/tasmtp/tasmtptest"
	"zmailer/internal/wire/taproto"
	"zmailer/test/peer"
)

// tlsZone has a domain with two servers of which one listens.
const tlsZone = `
there.test.     300 IN MX 10 mx.there.test.
mx.there.test.  300 IN A  127.0.0.1
`

// tlsStation returns a station whose server offers TLS, with a file tls.
func tlsStation(t *testing.T, sink *Sink, zone, policies string, change ...func(*Config)) (*station, *mxtest.Server) {
	t.Helper()
	dns := mxtest.Start(t, zone)
	dir := t.TempDir()
	if policies != "" {
		assert.Must(t, os.WriteFile(filepath.Join(dir, "tls"), []byte(policies), 0o600))
	}
	change = append([]func(*Config){func(c *Config) {
		c.Security.Policies, c.Security.Credentials = filepath.Join(dir, "tls"), filepath.Join(dir, "credentials")
	}}, change...)
	return newStation(t, sink.Port(), dns.Addr, change...), dns
}

func serverTLS(cert tls.Certificate) *tls.Config {
	return &tls.Config{Certificates: []tls.Certificate{cert}}
}

// under returns how a sink's last message came.
func under(s *Sink) string {
	taken := s.Messages()
	switch {
	case len(taken) == 0:
		return "nothing came"
	case taken[len(taken)-1].TLS == nil:
		return "in the clear"
	}
	return "under TLS"
}

// Every level of the file tls, against a server with a good certificate, one with another's
// name, one of an unknown authority, and one without TLS.
func TestLevelsOfTheFileTLS(t *testing.T) {
	ca, other := peer.NewCA(t, "known"), peer.NewCA(t, "unknown")
	good := ca.Issue("mx.there.test")
	print := sha256.Sum256(good.Leaf.Raw)
	key := sha256.Sum256(good.Leaf.RawSubjectPublicKeyInfo)
	const clear, secure = "in the clear", "under TLS"
	servers := map[string]*tls.Config{
		"good":       serverTLS(good),
		"other name": serverTLS(ca.Issue("mx.else.test")),
		"expired":    serverTLS(ca.IssueUntil(time.Now().Add(-time.Hour), "mx.there.test")),
		"unknown":    serverTLS(other.Issue("mx.there.test")),
		"no TLS":     nil,
		"broken":     {GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return nil, fmt.Errorf("no certificate") }},
	}
	cases := map[string]map[string]string{ // of the file, by server
		"":                          {"good": secure, "other name": secure, "expired": secure, "unknown": secure, "no TLS": clear, "broken": clear},
		"* may":                     {"good": secure, "broken": clear},
		"there.test none":           {"good": clear, "no TLS": clear, "broken": clear},
		"there.test encrypt":        {"good": secure, "other name": secure, "unknown": secure, "no TLS": "the server does not offer STARTTLS, and TLS is wanted (encrypt,", "broken": "starting TLS: remote error: tls: "},
		"there.test verify":         {"good": secure, "other name": "the certificate is for mx.else.test, not for there.test or .there.test", "expired": "x509: certificate has expired", "unknown": "x509: certificate signed by unknown authority", "no TLS": "the server does not offer STARTTLS"},
		".test verify match=host":   {"good": secure, "other name": "the certificate is for mx.else.test, not for mx.there.test"},
		"* verify match=.else.test": {"good": "the certificate is for mx.there.test, not for .else.test", "other name": secure},
		fmt.Sprintf("there.test fingerprint=%x", print): {"good": secure, "unknown": "are not written down", "no TLS": "the server does not offer STARTTLS"},
		fmt.Sprintf("there.test fingerprint=%x", key):   {"good": secure},
		"there.test verify ca=" + other.File():          {"good": "unknown authority", "unknown": secure},
		"there.test verify\n* none":                     {"good": secure},
		"else.test encrypt\n* none":                     {"good": clear},
	}
	for policy, want := range cases {
		for server, want := range want {
			t.Run(policy+", "+server, func(t *testing.T) {
				sink := (&Sink{TLS: servers[server]}).Start(t, "", "")
				s, _ := tlsStation(t, sink, tlsZone, policy, func(c *Config) { c.Security.Roots = ca.Pool() })
				got := s.one("smtp", "there.test")
				if want == clear || want == secure {
					if got.Word != taproto.OK3 || under(sink) != want {
						t.Errorf("got %+v, %s, want %s", got, under(sink), want)
					}
					return
				}
				if got.Word != taproto.DeferAll || !strings.Contains(got.Text, want) || len(sink.Messages()) > 0 {
					t.Errorf("got %+v, %s, want %q", got, under(sink), want)
				}
			})
		}
	}
}

// Peer10: text behind the answer to STARTTLS is a failure of TLS as any other: the mail goes in
// the clear where the policy allows that, and waits where it does not.
func TestTextBehindTheAnswerToSTARTTLS(t *testing.T) {
	ca := peer.NewCA(t, "known")
	for name, answer := range map[string]string{"a line": "220 go\n250 injected", "several": "220 go\n220 go\n250-x\n250 STARTTLS", "in pieces": "220-go\n220 go\nx", "not even a reply": "220 go\ngarbage"} {
		for policy, want := range map[string]string{"": "in the clear", "* may": "in the clear", "there.test encrypt": "nothing came"} {
			t.Run(name+", "+policy, func(t *testing.T) {
				sink := (&Sink{TLS: serverTLS(ca.Issue("mx.there.test")), Answer: On("STARTTLS", answer)}).Start(t, "", "")
				s, _ := tlsStation(t, sink, tlsZone, policy, func(c *Config) { c.Security.Roots = ca.Pool() })
				got := s.one("smtp", "there.test")
				assert.Equal(t, under(sink), want)
				word := taproto.OK3
				if want == "nothing came" {
					word = taproto.DeferAll
				}
				assert.Equal(t, got.Word, word)
			})
		}
	}
}
