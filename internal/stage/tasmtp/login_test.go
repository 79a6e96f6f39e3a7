package tasmtp

import (
	"cmp"
	"crypto/tls"
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"zmailer/internal/run/assert"
	"zmailer/internal/run/logtest"
	. "zmailer/internal/stage/agent/agenttest"
	. "zmailer/internal/stage/tasmtp/tasmtptest"
	"zmailer/internal/wire/taproto"
	"zmailer/internal/workspec"
	"zmailer/test/peer"
)

// gate is a server's AUTH PLAIN: whom it lets in, and who came.
type gate struct {
	mu    sync.Mutex
	users map[string]string // passwords
	came  []string          // users that were let in
}

// answer returns a Sink's Answer.
func (g *gate) answer(command string) string {
	text, ok := strings.CutPrefix(command, "AUTH PLAIN ")
	if !ok {
		return ""
	}
	b, _ := base64.StdEncoding.DecodeString(text)
	fields := strings.Split(string(b), "\x00")
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(fields) != 3 || g.users[fields[1]] == "" || g.users[fields[1]] != fields[2] {
		return "535 5.7.8 wrong user or password"
	}
	g.came = append(g.came, fields[1])
	return "235 2.7.0 in"
}

func (g *gate) seen() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return strings.Join(g.came, " ")
}

// writeSecret replaces a file that others must not read.
func writeSecret(t *testing.T, path, text string) {
	t.Helper()
	draft := path + ".new"
	assert.Must(t, os.WriteFile(draft, []byte(text), 0o600))
	assert.Must(t, os.Rename(draft, path))
}

// loginStation returns a station for a server that wants a login. It is on this machine,
// where a password may go without TLS.
func loginStation(t *testing.T, g *gate, sink *Sink, credentials, policies string, change ...func(*Config)) *station {
	t.Helper()
	sink.Answer = g.answer
	if sink.TLS != nil {
		sink.Secure = []string{"AUTH PLAIN"}
	} else {
		sink.Extensions = []string{"PIPELINING", "ENHANCEDSTATUSCODES", "AUTH PLAIN"}
	}
	sink.Start(t, "", "")
	dir := t.TempDir()
	writeSecret(t, filepath.Join(dir, "credentials"), credentials)
	s, _ := tlsStation(t, sink, "relay.test. 300 IN A 127.0.0.1\n", policies, append(change, func(c *Config) {
		c.Security.Credentials = filepath.Join(dir, "credentials")
	})...)
	return s
}

func TestAccountIsChosenByHostSenderAndName(t *testing.T) {
	const file = `
# HOST           USER    PASSWORD
relay.test       all     secret
relay.test       ann     "an ann's \"secret\""   from=ann@here.test
relay.test       firm    secret  from=@firm.test
relay.test       bulk    secret  name=bulk
other.test       other   secret
*                any     secret  name=any
`
	cases := map[string]struct{ sender, name, want string }{
		"by host":              {"bob@here.test", "", "all"},
		"by sender":            {"Ann@here.test", "", "ann"},
		"by a sender's domain": {"x@firm.test", "", "firm"},
		"by name":              {"ann@here.test", "bulk", "bulk"},
		"by name, any host":    {"ann@here.test", "any", "any"},
		"the null sender":      {"-", "", "all"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			g := &gate{users: map[string]string{"all": "secret", "ann": `an ann's "secret"`, "firm": "secret", "bulk": "secret", "any": "secret"}}
			sink := &Sink{}
			s := loginStation(t, g, sink, file, "", func(c2 *Config) { c2.Security.Account = c.name })
			host := fmt.Sprintf("relay.test:%d", sink.Port())
			message := s.Queue(Message{Sender: c.sender, Rcpts: Rcpts("smtp", host, "to@there.test")})
			if got := s.deliver(message, host); len(got) != 1 || got[0].Word != taproto.OK3 && got[0].Word != taproto.OK || g.seen() != c.want {
				t.Errorf("got %+v, user %q, want %q", got, g.seen(), c.want)
			}
		})
	}
}

// Messages of two senders with accounts of their own never share a connection.
func TestConnectionServesItsAccountAlone(t *testing.T) {
	g := &gate{users: map[string]string{"all": "x", "ann": "y"}}
	sink := &Sink{}
	s := loginStation(t, g, sink, "relay.test all x\nrelay.test ann y from=ann@here.test\n", "")
	host := fmt.Sprintf("relay.test:%d", sink.Port())
	for _, sender := range []string{"bob@here.test", "ann@here.test", "bob@here.test", "ann@here.test"} {
		message := s.Queue(Message{Sender: sender, Rcpts: Rcpts("smtp", host, "to@there.test")})
		s.deliver(message, host)
	}
	if got := g.seen(); got != "all ann" || sink.Connects() != 2 {
		t.Errorf("got logins %q on %d connections", got, sink.Connects())
	}
}

// A wrong password is a deferral of the host with advice, and the right one counts without
// a restart.
func TestWrongPasswordWaitsUntilItIsMended(t *testing.T) {
	g := &gate{users: map[string]string{"u": "right"}}
	sink := &Sink{}
	s := loginStation(t, g, sink, "relay.test u wrong\n", "")
	host := fmt.Sprintf("relay.test:%d", sink.Port())
	got := s.one("smtp", host)
	Only(t, []taproto.Answer{got}, taproto.DeferAll, "login as u: 535 5.7.8 wrong user or password")
	writeSecret(t, s.relay.security.accounts.Path(), "relay.test u right\n")
	logtest.Eventually(t, "the file is read again", func() bool { return s.one("smtp", host).Word == taproto.OK3 })
	assert.Equal(t, g.seen(), "u", "logins")
}

// K14: what one sender's own account comes to does not keep the others' mail to the host.
func TestSendersOwnAccountStopsNoOtherSender(t *testing.T) {
	ca := peer.NewCA(t, "known")
	cases := map[string]struct {
		tls   *tls.Config
		own   string // the line of ann's account
		other string
		word  taproto.Word // for ann
		want  string
	}{
		"a wrong password":             {serverTLS(ca.Issue("relay.test")), "ann WRONG from=ann@here.test", "", taproto.Deferred, "login as ann: 535"},
		"of the domain":                {serverTLS(ca.Issue("relay.test")), "ann WRONG from=@here.test", "", taproto.Deferred, "login as ann: 535"},
		"TLS for the password":         {nil, "ann right from=ann@here.test", "", taproto.Deferred, "does not offer STARTTLS"},
		"verified for the password":    {serverTLS(peer.NewCA(t, "else").Issue("relay.test")), "ann right from=ann@here.test", "", taproto.Deferred, "unknown authority"},
		"a wrong password of the host": {serverTLS(ca.Issue("relay.test")), "ann WRONG", "", taproto.DeferAll, "login as ann: 535"},
		"TLS that everybody's needs":   {nil, "ann right from=ann@here.test", "relay.test encrypt", taproto.DeferAll, "does not offer STARTTLS"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			g := &gate{users: map[string]string{"ann": "right"}}
			sink := &Sink{TLS: c.tls}
			s := loginStation(t, g, sink, "relay.test "+c.own+"\n", c.other, func(c *Config) { c.Security.Roots = ca.Pool() })
			s.relay.security.far = true
			host := fmt.Sprintf("relay.test:%d", sink.Port())
			got := s.deliver(s.Queue(Message{Sender: "ann@here.test", Rcpts: Rcpts("smtp", host, "to@there.test")}), host)
			Only(t, got, c.word, c.want)
		})
	}
}

// K14: of two servers the first refuses a message that requires TLS, and might take
// others: what the second says does not stop the host.
func TestHostGoesOnIfOneServerRefusesOneMessage(t *testing.T) {
	first := (&Sink{}).Start(t, "tcp", "127.0.0.1:0")
	second := (&Sink{Answer: On("GREETING", "421 4.3.2 closed")}).Start(t, "tcp", fmt.Sprintf("127.0.0.2:%d", first.Port()))
	s, names := tlsStation(t, first, `
there.test.    300 IN MX 10 a.there.test.
there.test.    300 IN MX 20 b.there.test.
a.there.test.  300 IN A  127.0.0.1
b.there.test.  300 IN A  127.0.0.2
`, "")
	names.Sign("there.test")
	message := s.Queue(Message{Rcpts: []workspec.Recipient{{Channel: "smtp", Host: "there.test", Address: "to@there.test", Notary: "REQUIRETLS=YES"}}})
	if got := s.deliver(message, "there.test"); len(got) != 1 || got[0].Word != taproto.Deferred || second.Connects() != 1 {
		t.Errorf("got %+v after %d connections to the second, want deferred", got, second.Connects())
	}
}

// A file that everybody may read is refused at the start.
func TestCredentialsMustBeSecret(t *testing.T) {
	path := filepath.Join(t.TempDir(), "credentials")
	assert.Must(t, os.WriteFile(path, []byte("relay.test u p\n"), 0o644))
	_, err := NewRelay(Config{Hostname: "here.test", Security: Security{Credentials: path}})
	if err == nil || !strings.Contains(err.Error(), "chmod o=") {
		t.Errorf("got %v", err)
	}
}

// A password goes to a server that is known, under TLS: whoever sits between does not get
// it (the loopback exception is taken away here).
func TestPasswordGoesToAKnownServerAlone(t *testing.T) {
	ca := peer.NewCA(t, "known")
	good, bad := serverTLS(ca.Issue("relay.test")), serverTLS(peer.NewCA(t, "else").Issue("relay.test"))
	const queued, unknown = "250 2.0.0 queued", "unknown authority"
	cases := map[string]struct {
		tls    *tls.Config
		policy string
		file   string // "": relay.test u p
		want   string // of the reply
		clause string // tls= of it
		header string
	}{
		"verified":                           {tls: good, want: queued},
		"not verified":                       {tls: bad, want: unknown},
		"not verified, as is written":        {tls: bad, policy: "relay.test encrypt", want: queued},
		"not verified, as the clause has it": {tls: bad, clause: "may", want: queued},
		"not verified, as is written of all": {tls: bad, policy: "* may", want: unknown},
		"no TLS":                             {want: "the server does not offer STARTTLS"},
		"no TLS, may be":                     {policy: "relay.test may", want: "the server does not offer STARTTLS"},
		"no TLS, as is written":              {policy: "relay.test none", want: "is not sent in the clear"},
		"no TLS, as is written twice":        {policy: "relay.test none", file: "relay.test u p cleartext", want: queued},
		// Where its records would tell, and do not.
		"dane without a record":              {tls: bad, policy: "relay.test dane", want: unknown},
		"dane without a record, verified":    {tls: good, policy: "relay.test dane", want: queued},
		"sts without a policy":               {tls: bad, policy: "relay.test sts", want: unknown},
		"dane of a clause":                   {tls: bad, clause: "dane", want: unknown},
		"sts of a clause":                    {tls: bad, clause: "sts", want: unknown},
		"dane, the sender does without":      {tls: bad, policy: "relay.test dane", header: "TLS-Required: No\n", want: unknown},
		"dane-only, the sender does without": {tls: bad, policy: "relay.test dane-only", header: "TLS-Required: No\n", want: "has no TLSA records"},
		"verified, the sender does without":  {tls: good, header: "TLS-Required: No\n", want: queued},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			g := &gate{users: map[string]string{"u": "p"}}
			sink := &Sink{TLS: c.tls}
			s := loginStation(t, g, sink, cmp.Or(c.file, "relay.test u p")+"\n", c.policy, func(to *Config) {
				to.Security.Roots, to.Security.Clause = ca.Pool(), c.clause
			})
			s.relay.security.far = true
			host := fmt.Sprintf("relay.test:%d", sink.Port())
			got := s.deliver(s.Queue(Message{Header: c.header, Rcpts: Rcpts("smtp", host, "to@there.test")}), host)[0]
			if !strings.Contains(got.Text, c.want) {
				t.Errorf("got %+v, want %q", got, c.want)
			}
			if (got.Word == taproto.OK3) != (g.seen() == "u") {
				t.Errorf("got %+v, logins %q", got, g.seen())
			}
		})
	}
}

// RFC 8314 §3.3: a port that talks TLS from the first byte.
func TestImplicitTLS(t *testing.T) {
	ca := peer.NewCA(t, "known")
	g := &gate{users: map[string]string{"u": "p"}}
	sink := &Sink{TLS: serverTLS(ca.Issue("relay.test")), Implicit: true}
	s := loginStation(t, g, sink, "relay.test u p\n", "relay.test verify implicit", func(c *Config) { c.Security.Roots = ca.Pool() })
	if got := s.one("smtp", fmt.Sprintf("relay.test:%d", sink.Port())); got.Word != taproto.OK3 || under(sink) != "under TLS" || g.seen() != "u" {
		t.Errorf("got %+v, %s, logins %q", got, under(sink), g.seen())
	}
}

// RFC 8689: who requires TLS gets it verified and from servers that promise the same, or
// fails with 5.7.30; others of the same message are not touched, nor is other mail (K14).
func TestREQUIRETLS(t *testing.T) {
	ca := peer.NewCA(t, "known")
	good := serverTLS(ca.Issue("mx.there.test"))
	cases := map[string]struct {
		tls    *tls.Config
		offers bool
		signed bool
		policy string
		word   taproto.Word
		want   string
	}{
		"offered, verified":              {good, true, true, "", taproto.OK3, "250 2.0.0 queued"},
		"not offered":                    {good, false, true, "", taproto.Error2, "the server does not know REQUIRETLS"},
		"no STARTTLS":                    {nil, false, true, "", taproto.Deferred, "the server does not offer STARTTLS"},
		"a certificate of another":       {serverTLS(ca.Issue("else.test")), true, true, "", taproto.Deferred, "the certificate is for else.test"},
		"what all mail there must have":  {nil, true, false, "there.test verify", taproto.DeferAll, "the server does not offer STARTTLS"},
		"the MX record is not confirmed": {good, true, false, "", taproto.Error2, "neither DNSSEC nor an MTA-STS policy confirms"},
		"TLS is switched off":            {good, true, true, "there.test none", taproto.Error2, "the message requires TLS, and there is none to there.test"},
		"the postmaster verifies":        {good, true, false, "there.test verify match=mx.there.test", taproto.OK3, "250 2.0.0 queued"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			sink := &Sink{TLS: c.tls}
			if c.offers {
				sink.Secure = []string{"REQUIRETLS"}
			}
			sink.Start(t, "", "")
			s, names := tlsStation(t, sink, tlsZone, c.policy, func(c *Config) { c.Security.Roots = ca.Pool() })
			if c.signed {
				names.Sign("there.test")
			}
			message := s.Queue(Message{Rcpts: []workspec.Recipient{{Channel: "smtp", Host: "there.test", Address: "to@there.test", Notary: "REQUIRETLS=YES"}}})
			got := s.deliver(message, "there.test")
			Only(t, got, c.word, c.want)
			for _, m := range sink.Messages() {
				if !strings.HasSuffix(m.Mail, " REQUIRETLS") {
					t.Errorf("got %s", m.Mail)
				}
			}
		})
	}
}

// RFC 8689 §5: "TLS-Required: No" does without what the destination asks for, not without
// what the postmaster does.
func TestTLSRequiredNo(t *testing.T) {
	ca := peer.NewCA(t, "own")
	cases := map[string]struct{ policy, header, want string }{
		"the destination's records":     {"* dane", "TLS-Required: No\nSubject: x\n", "250 2.0.0 queued"},
		"the same, yes":                 {"* dane", "TLS-Required: Yes\nSubject: x\n", "no TLSA record fits"},
		"any case":                      {"* dane", "Subject: x\ntls-required:   no\n", "250 2.0.0 queued"},
		"the postmaster's dane-only":    {"* dane-only", "TLS-Required: No\n", "no TLSA record fits"},
		"the postmaster's verification": {"* verify", "TLS-Required: No\n", "unknown authority"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			sink := (&Sink{TLS: serverTLS(ca.Issue("mx.there.test"))}).Start(t, "", "")
			zone := tlsZone + fmt.Sprintf("_%d._tcp.mx.there.test. 300 IN TLSA 3 1 1 %064x\n", sink.Port(), 1)
			s, names := tlsStation(t, sink, zone, c.policy)
			names.Sign("there.test")
			message := s.Queue(Message{Header: c.header, Rcpts: Rcpts("smtp", "there.test", "to@there.test")})
			if got := s.deliver(message, "there.test"); len(got) != 1 || !strings.Contains(got[0].Text, c.want) {
				t.Errorf("got %+v, want %q", got, c.want)
			}
		})
	}
}
