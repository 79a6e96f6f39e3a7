package tasmtp

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"zmailer/internal/run/assert"
	"zmailer/internal/stage/tasmtp/mx/mxtest"
	. "zmailer/internal/stage/tasmtp/tasmtptest"
	"zmailer/internal/wire/taproto"
	"zmailer/test/peer"
)

// A host's next connection goes on with the TLS session of the one before.
func TestTLSSessionIsResumed(t *testing.T) {
	ca := peer.NewCA(t, "known")
	sink := (&Sink{TLS: serverTLS(ca.Issue("mx.there.test"))}).Start(t, "", "")
	s, _ := tlsStation(t, sink, tlsZone, "there.test verify match=host", func(c *Config) { c.Security.Roots, c.Idle = ca.Pool(), 0 })
	for range 2 {
		if got := s.one("smtp", "there.test"); got.Word != taproto.OK3 {
			t.Fatalf("got %+v", got)
		}
	}
	m := sink.Messages()
	if sink.Connects() != 2 || m[0].TLS.DidResume || !m[1].TLS.DidResume {
		t.Errorf("got %d connections, resumed %v, %v", sink.Connects(), m[0].TLS.DidResume, m[1].TLS.DidResume)
	}
}

// A certificate is looked at on each connection, also on one that goes on with a session:
// a policy that has become stricter counts.
func TestResumedSessionIsVerified(t *testing.T) {
	ca := peer.NewCA(t, "unknown")
	sink := (&Sink{TLS: serverTLS(ca.Issue("mx.there.test"))}).Start(t, "", "")
	s, _ := tlsStation(t, sink, tlsZone, "there.test encrypt")
	if got := s.one("smtp", "there.test"); got.Word != taproto.OK3 {
		t.Fatalf("got %+v", got)
	}
	writeSecret(t, s.relay.security.policies.Path(), "there.test verify match=host\n")
	await(t, func() bool {
		got := s.one("smtp", "there.test")
		return got.Word == taproto.DeferAll && strings.Contains(got.Text, "unknown authority")
	})
	if sink.Connects() < 2 {
		t.Error("the connection of the old policy was used on")
	}
}

// Z6: tls= of a clause counts before what the file says of all, and after its line for the
// destination.
func TestPolicyOfAClause(t *testing.T) {
	cases := map[string]struct{ file, clause, want string }{
		"the clause alone":        {"", "encrypt", "encrypt, scheduler.conf"},
		"before that for all":     {"* sts", "encrypt", "encrypt, scheduler.conf"},
		"after the destination's": {"there.test may", "encrypt", "may, "},
		"neither":                 {"", "", "may, built in"},
		"that for all":            {"* sts", "", "sts, "},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			sink := (&Sink{}).Start(t, "", "")
			s, _ := tlsStation(t, sink, tlsZone, c.file, func(x *Config) {
				env := map[string]string{"TLSPOLICY": c.clause}
				assert.Must(t, x.Zone(func(name string) string { return env[name] }))
			})
			d, err := parseDestination("smtp", "there.test", 25)
			assert.Must(t, err)
			terms, err := s.relay.security.terms(&d, "", false, nil)
			assert.Must(t, err)
			if got := terms.policy.Text + ", " + terms.policy.Where; !strings.HasPrefix(got, c.want) {
				t.Errorf("got %s, want %s", got, c.want)
			}
		})
	}
	var c Config
	if err := c.Zone(func(string) string { return "nonsense" }); err == nil {
		t.Error("a clause's policy that is none passes")
	}
}

func TestPolicyCanBeTried(t *testing.T) {
	names := mxtest.Start(t, tlsZone+`
_25._tcp.mx.there.test. 300 IN TLSA 3 1 1 0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef
plain.test. 300 IN A 127.0.0.1
`)
	names.Sign("there.test")
	dir := t.TempDir()
	for name, text := range map[string]string{"tls": "* sts\nplain.test verify\nnone.test none\n", "credentials": "plain.test u hush\n"} {
		assert.Must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	cfg := Config{Hostname: "here.test", Resolver: names.Addr, Security: Security{Policies: filepath.Join(dir, "tls"), Credentials: filepath.Join(dir, "credentials")}}
	cases := map[string]string{
		"there.test":       fmt.Sprintf("policy: sts (%s/tls:1)\nmx.there.test: TLS, verified; else mail waits\n\tsts, %s/tls:1; 1 TLSA records of mx.there.test\n", dir, dir),
		"smtpx/plain.test": fmt.Sprintf("policy: verify (%s/tls:2)\nlogin: u (%s/credentials:1)\nplain.test: TLS, verified; else mail waits\n\tverify, %s/tls:2\n", dir, dir, dir),
		"smtpx/none.test":  fmt.Sprintf("policy: none (%s/tls:3)\nnone.test: not used: 5.1.2 look up address of none.test: no such domain\n", dir),
		"none.test":        fmt.Sprintf("policy: none (%s/tls:3)\nnone.test: not used: 5.1.2 look up MX of none.test: no such domain\n", dir),
		"lmtp/unix:/x":     "a socket of this machine: no TLS\n",
	}
	for where, want := range cases {
		var out bytes.Buffer
		if err := TestTLS(context.Background(), cfg, where, &out); err != nil {
			t.Errorf("%s: %v", where, err)
		}
		assert.Equal(t, out.String(), want, where)
	}
}

// A server that has no TLS to offer is told of as one with which TLS fails, where the
// policy wants TLS, and only there.
func TestMissingTLSIsLoggedWhereItIsWanted(t *testing.T) {
	for policy, want := range map[string]bool{"* encrypt": true, "* may": false} {
		var log strings.Builder
		s, _ := tlsStation(t, (&Sink{}).Start(t, "", ""), tlsZone, policy, func(c *Config) {
			c.Log = slog.New(slog.NewTextHandler(&log, nil))
		})
		if got := s.one("smtp", "there.test"); (got.Word == taproto.DeferAll) != want {
			t.Errorf("%s: got %+v", policy, got)
		}
		if got := strings.Contains(log.String(), "msg=tls-failed channel=smtp host=there.test"); got != want {
			t.Errorf("%s: logged %s", policy, log.String())
		}
	}
}
