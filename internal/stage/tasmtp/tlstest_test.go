package tasmtp

import (
	"log/slog"
	"strings"
	"testing"

	"zmailer/internal/run/assert"
	"zmailer/internal/run/logtest"
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
		s.want(taproto.OK3, "smtp", "there.test")
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
	s.want(taproto.OK3, "smtp", "there.test")
	writeSecret(t, s.relay.security.policies.Path(), "there.test verify match=host\n")
	logtest.Eventually(t, "the file is read again", func() bool {
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

// A server that offers no TLS is reported as one with which TLS fails, where the
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
