package smtpclient

import (
	"crypto/tls"
	"encoding/base64"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/xdg-go/scram"

	"zmailer/internal/run/assert"
	testpeer "zmailer/test/peer"
)

func TestHelloReadsExtensions(t *testing.T) {
	c, _, p := open(t, Config{}, hello+"C: QUIT\nS: 221 bye")
	want := Extensions{Pipelining: true, Size: true, MaxSize: 1000000, EightBitMIME: true, DSN: true, SMTPUTF8: true, EnhancedStatus: true}
	assert.Equal(t, c.Extensions(), want)
	assert.NoError(t, c.Quit())
	p.end(t)
}

func TestExtensionsAreCaseInsensitiveAndFirstLineIsNone(t *testing.T) {
	got := parseExtensions("PIPELINING\nsize\n8bitmime x\nDsn\nX-UNKNOWN 1 2", []string{"DSN"})
	want := Extensions{Size: true, EightBitMIME: true}
	assert.Equal(t, got, want)
}

func TestHeloForAServerWithoutEhlo(t *testing.T) {
	c, _, p := open(t, Config{}, `
S: 220 old
C: EHLO client.test
S: 500 what?
C: HELO client.test
S: 250 hello
C: MAIL From:<sender@client.test>
S: 250 ok
C: RCPT To:<a@test>
S: 250 ok
C: DATA
S: 354 go
BODY
S: 250 taken`)
	res, err := c.Send(message("a@test"))
	if err != nil || res[0].Code.String() != "2.0.0" {
		t.Errorf("got %+v, %v", res, err)
	}
	p.end(t)
}

func TestRefusedHello(t *testing.T) {
	cases := map[string]struct {
		script string
		lmtp   bool
		phase  Phase
		reply  string // "": the connection broke
	}{
		"greeting 554":      {"S: 554 no\nC: QUIT\nS: 221 x", false, PhaseGreeting, "554 no"},
		"greeting 421":      {"S: 421 busy", false, PhaseGreeting, "421 busy"},
		"greeting nonsense": {"S: hi", false, PhaseGreeting, ""},
		"greeting 250":      {"S: 250 x\nC: QUIT\nS: 221 x", false, PhaseGreeting, "250 x"},
		"hangs up at once":  {"CLOSE", false, PhaseGreeting, ""},
		"EHLO 421":          {"S: 220 x\nC: EHLO client.test\nS: 421 busy", false, PhaseHello, "421 busy"},
		"EHLO 451":          {"S: 220 x\nC: EHLO client.test\nS: 451 later\nC: QUIT\nS: 221 x", false, PhaseHello, "451 later"},
		"HELO refused too":  {"S: 220 x\nC: EHLO client.test\nS: 550 no\nC: HELO client.test\nS: 550 no\nC: QUIT\nS: 221 x", false, PhaseHello, "550 no"},
		"LHLO refused":      {"S: 220 x\nC: LHLO client.test\nS: 500 no\nC: QUIT\nS: 221 x", true, PhaseHello, "500 no"},
		"hangs up after it": {"S: 220 x\nC: EHLO client.test\nCLOSE", false, PhaseHello, ""},
		"several line refusal": {"S: 554-5.7.1 no\nS: 554 5.7.1 never\nC: QUIT\nS: 221 x", false,
			PhaseGreeting, "554 5.7.1 no never"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			conn, _, p := start(t, Config{LMTP: c.lmtp}, c.script)
			err := conn.Hello()
			var refused *ReplyError
			var broke *ConnError
			switch {
			case errors.As(err, &refused) && refused.Phase == c.phase && refused.Reply.String() == c.reply:
			case errors.As(err, &broke) && broke.Phase == c.phase && c.reply == "":
			default:
				t.Errorf("got %v, want %v %q", err, c.phase, c.reply)
			}
			if conn.Usable() {
				t.Error("still usable")
			}
			p.end(t)
		})
	}
}

// K15: each phase has a timeout of its own, and a tarpit does not hold us longer.
func TestTimeoutAtEachPhase(t *testing.T) {
	const ask = hello + "C: MAIL From:<sender@client.test> BODY=8BITMIME\n"
	const rcpt = "C: RCPT To:<a@test>\nC: DATA\n"
	cases := map[string]struct {
		set    func(*Timeouts) *time.Duration
		script string
		want   Phase
	}{
		"greeting": {func(t *Timeouts) *time.Duration { return &t.Greeting }, "WAIT", PhaseGreeting},
		"hello":    {func(t *Timeouts) *time.Duration { return &t.Hello }, "S: 220 x\nWAIT", PhaseHello},
		"MAIL":     {func(t *Timeouts) *time.Duration { return &t.Mail }, ask + "WAIT", PhaseMail},
		"RCPT":     {func(t *Timeouts) *time.Duration { return &t.Rcpt }, ask + "S: 250 ok\n" + rcpt + "WAIT", PhaseRcpt},
		"DATA":     {func(t *Timeouts) *time.Duration { return &t.Data }, ask + "S: 250 ok\n" + rcpt + "S: 250 ok\nWAIT", PhaseData},
		"dot": {func(t *Timeouts) *time.Duration { return &t.Dot },
			ask + "S: 250 ok\n" + rcpt + "S: 250 ok\nS: 354 go\nBODY\nWAIT", PhaseDot},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			times := short(patience)
			*c.set(&times) = 20 * time.Millisecond
			conn, _, _ := start(t, Config{Timeouts: times}, c.script)
			var err error = conn.Hello()
			if err == nil {
				res, _ := conn.Send(message("a@test"))
				err = res[0].Err
				assert.Equal(t, res[0].InDoubt, c.want == PhaseDot, "in doubt")
				assert.Equal(t, res[0].Code.String(), "4.4.2")
			}
			var broke *ConnError
			if !errors.As(err, &broke) || broke.Phase != c.want || !broke.Timeout() {
				t.Errorf("got %v, want a timeout %s", err, c.want)
			}
		})
	}
}

// A server that takes no bytes of the message is given up after the block timeout.
func TestTimeoutInsideTheMessage(t *testing.T) {
	times := short(patience)
	times.Block = 50 * time.Millisecond
	conn, _, _ := start(t, Config{Timeouts: times}, plainHello+`
C: MAIL From:<sender@client.test>
S: 250 ok
C: RCPT To:<a@test>
S: 250 ok
C: DATA
S: 354 go
HALFBODY
STALL`)
	assert.Must(t, conn.Hello())
	m := message("a@test")
	m.Body = endless{}
	res, _ := conn.Send(m)
	var broke *ConnError
	if !errors.As(res[0].Err, &broke) || broke.Phase != PhaseBody || !broke.Timeout() || res[0].InDoubt {
		t.Errorf("got %+v, want a timeout while sending, not in doubt", res[0])
	}
}

// endless is a body without end.
type endless struct{}

func (endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'x'
	}
	return len(p), nil
}

// tlsHello opens a session with STARTTLS alone.
const tlsHello = `
S: 220 mx.test ESMTP
C: EHLO client.test
S: 250-mx.test
S: 250 STARTTLS
C: STARTTLS
`

// secured returns a session with a go-smtp server under TLS.
func secured(t *testing.T, cfg *tls.Config) (*peer, *Conn, error) {
	t.Helper()
	ca := testpeer.NewCA(t, "test")
	p, c := servePeer(t, false, &tls.Config{Certificates: []tls.Certificate{ca.Issue("mx.test")}})
	if !c.Extensions().StartTLS {
		t.Fatal("no STARTTLS is offered")
	}
	if cfg.RootCAs == nil && !cfg.InsecureSkipVerify {
		cfg.RootCAs = ca.Pool()
	}
	return p, c, c.StartTLS(cfg)
}

func TestMessageUnderTLS(t *testing.T) {
	p, c, err := secured(t, &tls.Config{ServerName: "mx.test"})
	assert.Must(t, err)
	if c.TLS() == nil || c.TLS().Version != tls.VersionTLS13 {
		t.Errorf("got %+v", c.TLS())
	}
	if c.Extensions().StartTLS {
		t.Error("STARTTLS of the session in the clear is still known")
	}
	res, err := c.Send(message("ok@test"))
	assert.Must(t, err)
	assert.Same(t, outcomes(res), []string{"delivered 2.0.0 waiting for the answer to the final dot"})
	assert.Equal(t, p.tls, 1, "messages under TLS")
}

func TestRefusedCertificateEndsTheConnection(t *testing.T) {
	_, c, err := secured(t, &tls.Config{ServerName: "other.test"})
	var refused *TLSError
	if !errors.As(err, &refused) || c.Usable() {
		t.Errorf("got %v, usable %v", err, c.Usable())
	}
	assert.Equal(t, err.Error(), "starting TLS: tls: failed to verify certificate: x509: certificate is valid for mx.test, not other.test")
}

// RFC 3207 §6: what was pipelined behind the answer came from somebody else.
func TestTextBehindTheAnswerToSTARTTLSIsNotUsed(t *testing.T) {
	nc, server := pair(t)
	done := make(chan error, 1)
	go func() {
		s := newLines(server)
		s.say("220 mx.test ESMTP")
		s.hear()
		s.say("250-mx.test\r\n250 STARTTLS")
		s.hear()
		s.say("220 go\r\n250-mx.test\r\n250 AUTH PLAIN")
		s.hear()
		done <- nil
	}()
	c := New(nc, Config{Hostname: "client.test", Timeouts: short(patience)})
	assert.Must(t, c.Hello())
	err := c.StartTLS(&tls.Config{InsecureSkipVerify: true})
	if !errors.Is(err, errInjected) || c.Usable() || c.Extensions().Auth != "" {
		t.Errorf("got %v, usable %v, %+v", err, c.Usable(), c.Extensions())
	}
	<-done
}

func TestRefusedSTARTTLSLeavesTheSession(t *testing.T) {
	c, _, p := open(t, Config{}, tlsHello+"S: 454 4.7.0 no TLS today\nC: QUIT\nS: 221 bye")
	err := c.StartTLS(&tls.Config{})
	var refused *ReplyError
	if !errors.As(err, &refused) || refused.Phase != PhaseTLS || !c.Usable() {
		t.Errorf("got %v, usable %v", err, c.Usable())
	}
	assert.NoError(t, c.Quit())
	p.end(t)
}

func TestServerThatTalksNoTLS(t *testing.T) {
	c, _, p := open(t, Config{}, tlsHello+"S: 220 go\nHALFBODY\nCLOSE")
	err := c.StartTLS(&tls.Config{InsecureSkipVerify: true})
	var refused *TLSError
	if !errors.As(err, &refused) {
		t.Errorf("got %v", err)
	}
	<-p.done
}

func b64(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }

// authHello opens a session that offers mechanisms.
func authHello(mechanisms string) string {
	return "S: 220 mx.test ESMTP\nC: EHLO client.test\nS: 250-mx.test\nS: 250 AUTH " + mechanisms + "\n"
}

func TestLoginByWhatIsOffered(t *testing.T) {
	long := strings.Repeat("x", 600)
	cases := map[string]struct {
		mechanisms, user, script, want string
	}{
		"PLAIN":                           {"PLAIN LOGIN", "u", "C: AUTH PLAIN " + b64("\x00u\x00secret") + "\nS: 235 in", ""},
		"LOGIN":                           {"LOGIN CRAM-MD5", "u", "C: AUTH LOGIN\nS: 334 VXNlcm5hbWU6\nC: " + b64("u") + "\nS: 334 x?\nC: " + b64("secret") + "\nS: 235 in", ""},
		"a user too long for the command": {"plain", long, "C: AUTH PLAIN\nS: 334\nC: " + b64("\x00"+long+"\x00secret") + "\nS: 235 in", ""},
		"wrong password":                  {"PLAIN", "u", "C: AUTH PLAIN " + b64("\x00u\x00secret") + "\nS: 535 5.7.8 no\nC: QUIT\nS: 221 x", "logging in: 535 5.7.8 no"},
		"not now":                         {"PLAIN", "u", "C: AUTH PLAIN " + b64("\x00u\x00secret") + "\nS: 454 4.7.0 later\nC: QUIT\nS: 221 x", "logging in: 454 4.7.0 later"},
		"nothing that we know":            {"CRAM-MD5 GSSAPI", "u", "C: QUIT\nS: 221 x", "logging in: the server offers AUTH CRAM-MD5 GSSAPI, and we know SCRAM-SHA-256, PLAIN and LOGIN"},
		"more questions than there are":   {"PLAIN", "u", "C: AUTH PLAIN " + b64("\x00u\x00secret") + "\nS: 334\nC: QUIT\nS: 221 x", "logging in: PLAIN: the server asks for more"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			conn, _, p := open(t, Config{}, authHello(c.mechanisms)+c.script)
			err := conn.Auth(Account{User: c.user, Password: "secret"})
			got := ""
			if err != nil {
				got = err.Error()
			}
			assert.Equal(t, got, c.want)
			if strings.Contains(conn.HelloText(), b64("secret")) || strings.Contains(conn.HelloText(), b64("\x00u\x00secret")) {
				t.Errorf("the dialogue has the password: %s", conn.HelloText())
			}
			p.end(t)
		})
	}
}

// scramServer returns the library's server side, with its nonce and salt fixed on both sides
// so that the exchange can be a script.
func scramServer(t *testing.T, password string) *scram.ServerConversation {
	t.Helper()
	client, err := scram.SHA256.NewClient("u", password, "")
	assert.Must(t, err)
	stored, err := client.GetStoredCredentialsWithError(scram.KeyFactors{Salt: "0123456789abcdef", Iters: 4096})
	assert.Must(t, err)
	server, err := scram.SHA256.NewServer(func(string) (scram.StoredCredentials, error) { return stored, nil })
	assert.Must(t, err)
	return server.NewConversation()
}

// serveScram answers AUTH SCRAM-SHA-256 by a server that knows a password; one that
// cheats says 235 without having shown it.
func serveScram(t *testing.T, password string, cheats bool) (*Conn, chan error) {
	t.Helper()
	nc, server := pair(t)
	done := make(chan error, 1)
	conv := scramServer(t, password)
	go func() {
		done <- func() error {
			defer server.Close()
			s := newLines(server)
			s.say("220 mx.test")
			s.hear()
			s.say("250-mx.test\r\n250 AUTH PLAIN SCRAM-SHA-256")
			message := strings.TrimPrefix(s.hear(), "AUTH SCRAM-SHA-256 ")
			for {
				text, err := base64.StdEncoding.DecodeString(message)
				if err != nil {
					return err
				}
				if conv.Done() {
					break
				}
				answer, err := conv.Step(string(text))
				if err != nil {
					s.say("535 5.7.8 no")
					s.hear()
					return nil
				}
				if conv.Done() && cheats {
					break
				}
				s.say("334 " + b64(answer))
				message = s.hear()
			}
			s.say("235 2.7.0 in")
			s.hear()
			return s.err
		}()
	}()
	c := New(nc, Config{Hostname: "client.test", Timeouts: short(patience)})
	assert.Must(t, c.Hello())
	return c, done
}

func TestSCRAMLogin(t *testing.T) {
	cases := map[string]struct {
		password string
		cheats   bool
		want     string
	}{
		"the right password":                      {"secret", false, ""},
		"the wrong password":                      {"other", false, "logging in: 535 5.7.8 no"},
		"a server that does not know it and lies": {"secret", true, "logging in: SCRAM-SHA-256: the server has not shown that it knows the password"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			conn, done := serveScram(t, c.password, c.cheats)
			err := conn.Auth(Account{User: "u", Password: "secret"})
			got := ""
			if err != nil {
				got = err.Error()
			}
			assert.Equal(t, got, c.want)
			if broke := (*ConnError)(nil); errors.As(err, &broke) {
				t.Error("the connection broke")
			}
			conn.Quit()
			<-done
		})
	}
}

func TestServerCannotKeepUsBusy(t *testing.T) {
	for challenge, want := range map[string]bool{
		"r=x,s=eA==,i=4096": false, "r=x,s=eA==,i=10000000": false, "r=x,s=eA==,i=10000001": true,
		"r=x,s=eA==,i=99999999999999999999": true, "v=x": false, "": false,
	} {
		assert.Equal(t, tooMany(challenge), want, challenge)
	}
}
