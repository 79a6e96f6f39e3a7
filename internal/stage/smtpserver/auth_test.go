package smtpserver

import (
	"bufio"
	"encoding/base64"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/xdg-go/scram"

	"zmailer/internal/lookup/passwd"
	"zmailer/internal/run/assert"
	"zmailer/internal/run/logtest"
	"zmailer/internal/stage/smtpserver/policy/limits"
	"zmailer/internal/stage/smtpserver/session"
)

// accounts writes a file in which jane's password is "secret", with SCRAM keys.
func accounts(t *testing.T) string {
	t.Helper()
	text, _, err := passwd.Change{User: "jane", Password: "secret", SCRAM: true}.Apply(nil)
	assert.Must(t, err)
	path := filepath.Join(t.TempDir(), "users")
	writeFile(t, path, text, 0o600)
	return path
}

// submission runs a server for our users alone.
func submission(t *testing.T, change func(*Config)) *running {
	t.Helper()
	path := accounts(t)
	return start(t, func(c *Config) {
		c.Listen = on(session.RoleSubmission, anyPort)
		c.Users = UsersConfig{Source: "file:" + path, Delay: time.Millisecond}
		if change != nil {
			change(c)
		}
	})
}

func b64(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }

// RFC 6409 section 4.3. A greeting does not change the user (RFC 4954 section 4).
func TestSubmissionWantsAuthentication(t *testing.T) {
	r := submission(t, nil)
	p := r.dial()
	offers(t, p.say("EHLO c", "250"), "AUTH SCRAM-SHA-256 PLAIN LOGIN\r\n", true)
	p.say("MAIL FROM:<a@example.net>", "530 5.7.0")
	p.say("AUTH PLAIN "+b64("\x00jane\x00secret"), "235 2.7.0")
	p.say("AUTH PLAIN "+b64("\x00jane\x00secret"), "503 5.5.1")
	p.mail("a@example.net", "b@example.com", plain, "250")
	r.only("with ESMTPA", "submitted jane") // Op13
	p.say("EHLO c", "250")
	p.from("a@example.net")
	r.log.Expect(t, 1, "msg=authenticated")
	r.log.Expect(t, 0, "secret")
	// Without AUTH no one can send.
	r = submission(t, func(c *Config) { c.Users.Source = "" })
	p = r.dial()
	offers(t, p.say("EHLO c", "250"), "AUTH", false)
	p.say("MAIL FROM:<a@b>", "530 5.7.0")
	r.log.Expect(t, 1, "msg=no-users")
	// On port 25 no one authenticates, unless AUTHMX says so (Peer12); and no one has to.
	users := accounts(t)
	p = start(t, func(c *Config) { c.Users.Source = "file:" + users }).dial()
	offers(t, p.say("EHLO c", "250"), "AUTH", false)
	p.say("AUTH PLAIN "+b64("\x00jane\x00secret"), "502 5.5.1")
	r = start(t, func(c *Config) { c.Users.Source, c.Users.MX, c.Access.RelayNets = "file:"+users, true, nil })
	p = r.dial()
	offers(t, p.say("EHLO c", "250"), "AUTH", true)
	p.say("MAIL FROM:<a@b>", "250")
	p.say("RCPT TO:<c@far.example>", "550 5.7.1")
	p.say("RSET", "250")
	p.say("AUTH PLAIN "+b64("\x00jane\x00secret"), "235")
	p.mail("a@b", "c@far.example", plain, "250")
}

// Op13: the router adds what is missing in the mail of devices that cannot log in, and of no
// other host.
func TestOp13ClientsOfHeaderNetsSubmit(t *testing.T) {
	for name, tt := range map[string]struct {
		nets []netip.Prefix
		want bool
	}{"in HEADERNETS": {loopback, true}, "not in HEADERNETS": {nil, false}} {
		t.Run(name, func(t *testing.T) {
			r := start(t, func(c *Config) { c.HeaderNets = tt.nets })
			r.greeted().mail("a@example.net", "b@example.com", plain, "250")
			assert.Equal(t, strings.Contains(r.only(), "\nsubmitted -\n"), tt.want)
		})
	}
}

// offers checks whether a reply to EHLO has a word.
func offers(t *testing.T, reply, word string, want bool) {
	t.Helper()
	assert.Equal(t, strings.Contains(reply, word), want, "%s in %q", word, reply)
}

func TestMechanismsOfAuth(t *testing.T) {
	r := submission(t, nil)
	for name, steps := range map[string][]string{ // line, reply, line, reply, ...
		"PLAIN":                    {"AUTH PLAIN " + b64("\x00jane\x00secret"), "235 2.7.0"},
		"PLAIN for oneself":        {"AUTH plain " + b64("jane\x00jane\x00secret"), "235"},
		"PLAIN asked":              {"AUTH PLAIN", "334 ", b64("\x00jane\x00secret"), "235"},
		"PLAIN for another":        {"AUTH PLAIN " + b64("joe\x00jane\x00secret"), "535 5.7.8"},
		"PLAIN, wrong":             {"AUTH PLAIN " + b64("\x00jane\x00Secret"), "535 5.7.8"},
		"PLAIN, unknown":           {"AUTH PLAIN " + b64("\x00joe\x00secret"), "535 5.7.8"},
		"PLAIN, empty":             {"AUTH PLAIN " + b64("\x00jane\x00"), "535 5.7.8"},
		"PLAIN, no user":           {"AUTH PLAIN " + b64("\x00\x00secret"), "535 5.7.8"},
		"PLAIN, too few NULs":      {"AUTH PLAIN " + b64("jane\x00secret"), "501 5.5.2"},
		"PLAIN, nothing":           {"AUTH PLAIN =", "501 5.5.2"},
		"LOGIN":                    {"AUTH LOGIN", "334 VXNlcm5hbWU6\r\n", b64("jane"), "334 UGFzc3dvcmQ6\r\n", b64("secret"), "235"},
		"LOGIN with its user":      {"AUTH LOGIN " + b64("jane"), "334 UGFzc3dvcmQ6\r\n", b64("secret"), "235"},
		"LOGIN, wrong":             {"AUTH LOGIN " + b64("jane"), "334", b64("Secret"), "535 5.7.8"},
		"LOGIN, given up":          {"AUTH LOGIN", "334", "*", "501 5.7.0"},
		"not base64":               {"AUTH PLAIN !!!", "501 5.5.2"},
		"an answer not in base64":  {"AUTH LOGIN", "334", "jane@", "501 5.5.2"},
		"a command as an answer":   {"AUTH LOGIN", "334", "HELP", "334", "QUIT", "535 5.7.8"},
		"unknown":                  {"AUTH CRAM-MD5", "504 5.5.4"},
		"with TLS's binding":       {"AUTH SCRAM-SHA-256-PLUS", "504 5.5.4"},
		"no mechanism":             {"AUTH", "501 5.5.4"},
		"too many words":           {"AUTH PLAIN a b", "501 5.5.4"},
		"SCRAM, no SCRAM":          {"AUTH SCRAM-SHA-256 " + b64("hello"), "501 5.5.2"},
		"SCRAM for another":        {"AUTH SCRAM-SHA-256 " + b64("n,a=joe,n=jane,r=abc"), "535 5.7.8"},
		"SCRAM, a bad name":        {"AUTH SCRAM-SHA-256 " + b64("n,,n=ja=ne,r=abc"), "501 5.5.2"},
		"SCRAM, a binding claimed": {"AUTH SCRAM-SHA-256 " + b64("p=tls-unique,,n=jane,r=abc"), "501 5.5.2"},
		"inside of a message":      {"AUTH PLAIN " + b64("\x00jane\x00secret"), "235", "MAIL FROM:<a@b>", "250", "AUTH PLAIN", "503 5.5.1"},
		"after a failure":          {"AUTH PLAIN " + b64("\x00jane\x00x"), "535", "AUTH PLAIN " + b64("\x00jane\x00secret"), "235"},
	} {
		t.Run(name, func(t *testing.T) {
			p := r.greeted()
			for i := 0; i < len(steps); i += 2 {
				p.say(steps[i], steps[i+1])
			}
			p.say("NOOP", "250")
			p.Close()
		})
	}
	t.Run("before the greeting", func(t *testing.T) { r.dial().say("AUTH PLAIN "+b64("\x00jane\x00secret"), "503 5.5.1") })
}

// With the client side of another library.
func TestSCRAMProvesBothSides(t *testing.T) {
	r := submission(t, nil)
	for name, tt := range map[string]struct{ user, password, want string }{
		"right":   {"jane", "secret", "235"},
		"wrong":   {"jane", "Secret", "535 5.7.8"},
		"unknown": {"joe", "secret", "535 5.7.8"},
	} {
		t.Run(name, func(t *testing.T) {
			c := assert.Get(scram.SHA256.NewClient(tt.user, tt.password, ""))(t)
			p, talk := r.greeted(), c.NewConversation()
			first := assert.Get(talk.Step(""))(t)
			line := "AUTH SCRAM-SHA-256 " + b64(first)
			for range 2 {
				p.send(line + "\r\n")
				got := p.reply()
				text, ok := strings.CutPrefix(got, "334 ")
				if !ok {
					if !strings.HasPrefix(got, tt.want) {
						t.Errorf("got %q, want %s", got, tt.want)
					}
					return
				}
				challenge := assert.Get(base64.StdEncoding.DecodeString(strings.TrimSpace(text)))(t)
				next, err := talk.Step(string(challenge))
				if err != nil {
					t.Fatalf("after %q: %v", challenge, err)
				}
				line = b64(next)
			}
			if !talk.Valid() {
				t.Error("the server did not prove that it knows the password")
			}
			p.say("", tt.want)
		})
	}
}

// M46: wrong passwords of a connection, and of an address.
func TestWrongPasswordsAreLimited(t *testing.T) {
	p := submission(t, nil).greeted()
	for range authFailures {
		p.say("AUTH PLAIN "+b64("\x00jane\x00wrong"), "535 5.7.8")
	}
	p.end("421 4.7.0")
	r := submission(t, func(c *Config) { c.Limits.Failures = limits.Rate{Count: 2, Per: time.Hour} })
	right := r.greeted()
	for range 2 {
		r.greeted().say("AUTH PLAIN "+b64("\x00jane\x00wrong"), "535")
	}
	// The right password is not checked either: a client that guesses must not learn it.
	right.say("AUTH PLAIN "+b64("\x00jane\x00secret"), "421 4.7.0")
	right.end()
}

func TestTroubleOfTheBackendIsTemporary(t *testing.T) {
	r := submission(t, func(c *Config) { c.Users.Source = "dovecot:" + filepath.Join(t.TempDir(), "none") })
	p := r.dial()
	offers(t, p.say("EHLO c", "250"), "AUTH PLAIN LOGIN\r\n", true)
	for range authFailures + 1 {
		p.say("AUTH PLAIN "+b64("\x00jane\x00secret"), "454 4.7.0")
	}
	if got := r.log.Count("msg=auth-trouble"); got > 2 {
		t.Errorf("the trouble is logged %d times", got)
	}
}

func TestPasswordFileIsReadAgain(t *testing.T) {
	var path string
	r := submission(t, func(c *Config) { path = strings.TrimPrefix(c.Users.Source, "file:") })
	text, _, err := passwd.Change{User: "joe", Password: "new"}.Apply(nil)
	assert.Must(t, err)
	writeFile(t, path, text, 0o600)
	logtest.Eventually(t, "joe's password holds", func() bool {
		p := r.greeted()
		defer p.Close()
		p.send("AUTH PLAIN " + b64("\x00joe\x00new") + "\r\n")
		return strings.HasPrefix(p.reply(), "235")
	})
}

func FuzzDecodeResponse(f *testing.F) {
	f.Add("=")
	f.Add(b64("\x00jane\x00secret"))
	f.Add("!")
	f.Fuzz(func(t *testing.T, text string) {
		if b, ok := decodeResponse(text); ok && (b == nil || len(b) > len(text)) {
			t.Errorf("%q: %q", text, b)
		}
	})
}

// FuzzAuth gives AUTH any argument and any responses: the first line of text, and the others.
// Only the right password makes a user, and each exchange has an end.
func FuzzAuth(f *testing.F) {
	secret := b64("\x00jane\x00secret")
	for _, seed := range []string{
		"PLAIN " + secret, "plain\n" + secret, "PLAIN =\n" + secret, "PLAIN " + b64("\x00jane\x00wrong"), "LOGIN\n" + b64("jane") + "\n" + b64("secret"),
		"LOGIN " + b64("jane") + "\n" + b64("secret"), "LOGIN\n*", "SCRAM-SHA-256 " + b64("n,,n=jane,r=abc") + "\n" + b64("c=biws,r=abc,p=x"),
		"PLAIN !", "PLAIN a b", "", "GSSAPI", "PLAIN " + b64("\x00\x00"), "SCRAM-SHA-256 " + b64("p=x,,n=,r="), "PLAIN\n" + strings.Repeat("A", 12000),
	} {
		f.Add(seed)
	}
	text, _, err := passwd.Change{User: "jane", Password: "secret", SCRAM: true}.Apply(nil)
	assert.Must(f, err)
	users := filepath.Join(f.TempDir(), "users")
	assert.Must(f, os.WriteFile(users, text, 0o600))
	office := newOffice(f)
	s := assert.Get(newServer(Config{PostOffice: office.dir, FS: office.disk, Hostname: "mx.example.org",
		Ports: Ports{Listen: on(session.RoleSubmission, anyPort)}, Users: UsersConfig{Source: "file:" + users, Delay: 1}}))(f)
	f.Cleanup(s.cancel)
	f.Fuzz(func(t *testing.T, said string) {
		h := s.newHandler(session.Client{Role: session.RoleSubmission, Addr: netip.MustParseAddrPort("127.0.0.1:1")}, nil).(*handler)
		defer h.Close()
		lines := strings.Split(said, "\n")
		asked := 0
		r := h.Auth(lines[0], func(string) (string, error) {
			if asked++; asked >= len(lines) {
				return "", session.ErrLost
			}
			return lines[asked], nil
		})
		if asked > authSteps {
			t.Errorf("%d challenges", asked)
		}
		if r == nil {
			if asked < len(lines) {
				t.Error("no reply to a client that is there")
			}
			return
		}
		switch r.Code {
		case 235:
			has := false
			for _, word := range strings.Fields(said) {
				b, _ := decodeResponse(word)
				has = has || strings.Contains(string(b), "secret")
			}
			if h.client.User != "jane" || !has && !strings.HasPrefix(strings.ToUpper(said), "SCRAM") {
				t.Errorf("%q made %q", said, h.client.User)
			}
			return
		case 501, 504, 535:
		default:
			t.Errorf("%q: reply %d", said, r.Code)
		}
		if h.client.User != "" {
			t.Errorf("%q: reply %d, and user %q", said, r.Code, h.client.User)
		}
	})
}

// RFC 4954 section 4: only clients on this machine send passwords in the clear, unless
// AUTHPLAINTEXT allows more.
func TestAuthIsNotOfferedInTheClear(t *testing.T) {
	const password = "AUTH PLAIN AGphbmUAc2VjcmV0"
	p := submission(t, func(c *Config) { c.XClientNets = loopback }).as("203.0.113.9", "")
	offers(t, p.say("EHLO c", "250"), "AUTH", false)
	p.say(password, "538 5.7.11")
	p.say("MAIL FROM:<a@b>", "530 5.7.0")
	p = submission(t, func(c *Config) { c.XClientNets, c.Users.Plaintext = loopback, true }).as("203.0.113.9", "")
	offers(t, p.say("EHLO c", "250"), "AUTH", true)
	p.say(password, "235")
	users := accounts(t)
	p = startSecured(t, func(c *Config) { c.XClientNets, c.Users.Source = loopback, "file:"+users }).implicit()
	p.say("EHLO proxy", "250")
	p.say("XCLIENT ADDR=203.0.113.9", "220")
	offers(t, p.say("EHLO c", "250"), "AUTH", true)
	p.say(password, "235")
}

// refusesTokens answers as Dovecot's auth server does to a token that is not good (seen with the
// real one in package auth): with a challenge, behind which the refusal comes.
func refusesTokens(t *testing.T) (socket string) {
	socket = filepath.Join(t.TempDir(), "auth")
	l := assert.Get(net.Listen("unix", socket))(t)
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				fmt.Fprint(c, "VERSION\t1\t2\nSPID\t1\nCUID\t1\nCOOKIE\tab\nMECH\tXOAUTH2\nMECH\tOAUTHBEARER\nDONE\n")
				for s := bufio.NewScanner(c); s.Scan(); {
					switch line := s.Text(); {
					case strings.HasPrefix(line, "AUTH\t"):
						fmt.Fprint(c, "CONT\t1\t"+b64(`{"status":"invalid_token"}`)+"\n")
					case strings.HasPrefix(line, "CONT\t"):
						fmt.Fprint(c, "FAIL\t1\n")
					}
				}
			}()
		}
	}()
	return socket
}

// A client that ends the exchange when it reads that its token is wrong, by * or by the end of the
// connection, has guessed as much as one that waits for the 535.
func TestRefusedTokensCountHoweverTheExchangeEnds(t *testing.T) {
	for name, end := range map[string]func(p *client){
		"cancelled": func(p *client) { p.say("*", "535 5.7.8") },
		"cut":       func(p *client) { p.Close() },
		"answered":  func(p *client) { p.say("", "535 5.7.8") },
		"garbled":   func(p *client) { p.say("!", "535 5.7.8") }, // no base64
	} {
		t.Run(name, func(t *testing.T) {
			r := submission(t, func(c *Config) {
				c.Users.Source = "dovecot:" + refusesTokens(t)
				c.Limits.Failures = limits.Rate{Count: 2, Per: time.Hour}
			})
			for i := range 2 {
				p := r.greeted()
				p.say("AUTH XOAUTH2 "+b64("user=jane\x01auth=Bearer guess\x01\x01"), "334 ")
				end(p)
				logtest.Eventually(t, "the refusal is noticed", func() bool { return r.log.Count("msg=auth-failed") == i+1 })
			}
			r.greeted().say("AUTH XOAUTH2 "+b64("user=jane\x01auth=Bearer guess\x01\x01"), "421 4.7.0")
		})
	}
}

// A client that takes the time of the reply to a wrong password does not learn how long the backend
// took: a directory answers sooner for a user that it does not have.
func TestReplyToAWrongPasswordHidesTheTimeOfTheCheck(t *testing.T) {
	const unit = time.Second
	for name, tt := range map[string]struct{ took, want time.Duration }{
		"at once":             {0, unit},
		"an unknown user":     {3 * time.Millisecond, unit - 3*time.Millisecond},
		"a known one":         {40 * time.Millisecond, unit - 40*time.Millisecond},
		"just in time":        {unit, unit},
		"slower than a delay": {unit + 300*time.Millisecond, unit - 300*time.Millisecond},
		"a clock set back":    {-time.Second, unit},
	} {
		t.Run(name, func(t *testing.T) { assert.Equal(t, restOf(unit, tt.took), tt.want) })
	}
}
