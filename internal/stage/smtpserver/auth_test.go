package smtpserver

import (
	"encoding/base64"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/xdg-go/scram"

	"zmailer/internal/lookup/passwd"
	"zmailer/internal/stage/smtpserver/policy/limits"
)

// accounts writes a file in which jane's password is "secret", with SCRAM keys.
func accounts(t *testing.T) string {
	t.Helper()
	text, _, err := passwd.Change{User: "jane", Password: "secret", SCRAM: true}.Apply(nil)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "users")
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// submission runs a server for our users alone.
func submission(t *testing.T, change func(*Config)) *running {
	t.Helper()
	path := accounts(t)
	return start(t, func(c *Config) {
		c.Listen, c.SubmissionListen = nil, []string{"127.0.0.1:0"}
		c.Users = UsersConfig{Source: "file:" + path, Delay: time.Millisecond}
		if change != nil {
			change(c)
		}
	})
}

func b64(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }

// RFC 6409 §4.3.
func TestSubmissionWantsAuthentication(t *testing.T) {
	r := submission(t, nil)
	p := r.dial()
	if got := p.say("EHLO c", "250"); !strings.Contains(got, "AUTH SCRAM-SHA-256 PLAIN LOGIN\r\n") {
		t.Errorf("%q does not offer AUTH", got)
	}
	p.say("MAIL FROM:<a@example.net>", "530 5.7.0")
	p.say("AUTH PLAIN "+b64("\x00jane\x00secret"), "235 2.7.0")
	p.say("AUTH PLAIN "+b64("\x00jane\x00secret"), "503 5.5.1")
	p.say("MAIL FROM:<a@example.net>", "250")
	p.say("RCPT TO:<b@example.com>", "250")
	p.say("DATA", "354")
	p.say("Subject: x\r\n\r\nhi\r\n.", "250")
	if got := r.only(); !strings.Contains(got, "with ESMTPA\n") {
		t.Errorf("no A in the protocol of the envelope: %q", got)
	}
	// A greeting does not change the user (RFC 4954 §4).
	p.say("EHLO c", "250")
	p.say("MAIL FROM:<a@example.net>", "250")
	p.say("RSET", "250")
	if !strings.Contains(r.log.String(), "msg=authenticated") || strings.Contains(r.log.String(), "secret") {
		t.Error("wrong log")
	}
}

func TestMechanismsOfAuth(t *testing.T) {
	r := submission(t, nil)
	for name, steps := range map[string][]string{ // line, reply, line, reply, ...
		"PLAIN":                    {"AUTH PLAIN " + b64("\x00jane\x00secret"), "235 2.7.0"},
		"PLAIN for oneself":        {"AUTH plain " + b64("jane\x00jane\x00secret"), "235"},
		"PLAIN asked":              {"AUTH PLAIN", "334 \r\n", b64("\x00jane\x00secret"), "235"},
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
			p := r.dial()
			p.say("EHLO c", "250")
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
			c, err := scram.SHA256.NewClient(tt.user, tt.password, "")
			if err != nil {
				t.Fatal(err)
			}
			p, talk := r.dial(), c.NewConversation()
			p.say("EHLO c", "250")
			first, err := talk.Step("")
			if err != nil {
				t.Fatal(err)
			}
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
				challenge, err := base64.StdEncoding.DecodeString(strings.TrimSpace(text))
				if err != nil {
					t.Fatal(err)
				}
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

func TestAuthIsNotOfferedOnPort25(t *testing.T) {
	path := accounts(t)
	r := start(t, func(c *Config) { c.Users.Source = "file:" + path })
	p := r.dial()
	if got := p.say("EHLO c", "250"); strings.Contains(got, "AUTH") {
		t.Errorf("%q offers AUTH", got)
	}
	p.say("AUTH PLAIN "+b64("\x00jane\x00secret"), "502 5.5.1")
}

func TestWrongPasswordsEndTheConnection(t *testing.T) {
	r := submission(t, nil)
	p := r.dial()
	p.say("EHLO c", "250")
	for range authFailures {
		p.say("AUTH PLAIN "+b64("\x00jane\x00wrong"), "535 5.7.8")
	}
	p.expect("421 4.7.0")
	p.end()
}

// M46: of passwords.
func TestWrongPasswordsOfAnAddressAreLimited(t *testing.T) {
	r := submission(t, func(c *Config) { c.Limits.Failures = limits.Rate{Count: 2, Per: time.Hour} })
	right := r.dial()
	right.say("EHLO c", "250")
	for range 2 {
		p := r.dial()
		p.say("EHLO c", "250")
		p.say("AUTH PLAIN "+b64("\x00jane\x00wrong"), "535")
	}
	// The right password is not checked either: a client that guesses must not learn it.
	right.say("AUTH PLAIN "+b64("\x00jane\x00secret"), "421 4.7.0")
	right.end()
}

func TestTroubleOfTheBackendIsTemporary(t *testing.T) {
	r := submission(t, func(c *Config) { c.Users.Source = "dovecot:" + filepath.Join(t.TempDir(), "none") })
	p := r.dial()
	if got := p.say("EHLO c", "250"); !strings.Contains(got, "AUTH PLAIN LOGIN\r\n") {
		t.Errorf("%q does not offer AUTH", got)
	}
	for range authFailures + 1 {
		p.say("AUTH PLAIN "+b64("\x00jane\x00secret"), "454 4.7.0")
	}
	if got := strings.Count(r.log.String(), "msg=auth-trouble"); got > 2 {
		t.Errorf("the trouble is logged %d times", got)
	}
}

func TestSubmissionWithoutUsersTakesNothing(t *testing.T) {
	r := submission(t, func(c *Config) { c.Users.Source = "" })
	p := r.dial()
	if got := p.say("EHLO c", "250"); strings.Contains(got, "AUTH") {
		t.Errorf("%q offers AUTH", got)
	}
	p.say("MAIL FROM:<a@b>", "530 5.7.0")
	if !strings.Contains(r.log.String(), "msg=no-users") {
		t.Error("no log line")
	}
}

func TestPasswordFileIsReadAgain(t *testing.T) {
	var path string
	r := submission(t, func(c *Config) { path = strings.TrimPrefix(c.Users.Source, "file:") })
	p := r.dial()
	p.say("EHLO c", "250")
	p.say("AUTH PLAIN "+b64("\x00joe\x00new"), "535")
	text, _, err := passwd.Change{User: "joe", Password: "new"}.Apply(nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path+".new", text, 0o600); err != nil {
		t.Fatal(err)
	}
	old := time.Now().Add(-time.Hour)
	if err := os.Chtimes(path+".new", old, old); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
	eventually(t, "joe's password holds", func() bool {
		p := r.dial()
		defer p.Close()
		p.say("EHLO c", "250")
		p.send("AUTH PLAIN " + b64("\x00joe\x00new") + "\r\n")
		return strings.HasPrefix(p.reply(), "235")
	})
}

// Other clients.
func TestClientsAuthenticate(t *testing.T) {
	for name, args := range map[string][]string{
		"swaks PLAIN": {"swaks", "--auth", "PLAIN", "--auth-user", "jane", "--auth-password", "secret"},
		"swaks LOGIN": {"swaks", "--auth", "LOGIN", "--auth-user", "jane", "--auth-password", "secret"},
		"msmtp":       {"msmtp", "--auth=plain", "--user=jane", "--passwordeval=echo secret", "--tls=off", "--from=a@example.org", "--host=127.0.0.1", "b@example.com"},
		"msmtp SCRAM": {"msmtp", "--auth=scram-sha-256", "--user=jane", "--passwordeval=echo secret", "--tls=off", "--from=a@example.org", "--host=127.0.0.1", "b@example.com"},
	} {
		t.Run(name, func(t *testing.T) {
			program, err := exec.LookPath(args[0])
			if err != nil {
				t.Skipf("skipped: %s is not installed", args[0])
			}
			r := submission(t, nil)
			_, port, _ := strings.Cut(r.addr, ":")
			args := args[1:]
			if strings.HasPrefix(name, "swaks") {
				args = append(args, "--server", "127.0.0.1", "--port", port, "--from", "a@example.org", "--to", "b@example.com", "--timeout", "20")
			} else {
				args = append([]string{"--file=/dev/null", "--port=" + port}, args...)
			}
			cmd := exec.Command(program, args...)
			cmd.Stdin = strings.NewReader("Subject: x\n\nhi\n")
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			if got := r.only(); !strings.Contains(got, "with ESMTPA\n") {
				t.Errorf("got %q", got)
			}
		})
	}
}

func FuzzDecodeResponse(f *testing.F) {
	f.Add("=")
	f.Add(b64("\x00jane\x00secret"))
	f.Add("!")
	f.Fuzz(func(t *testing.T, text string) {
		if b, ok := decodeResponse(text); ok && (b == nil || len(b) > len(text)) {
			t.Errorf("%q: %s", text, fmt.Sprintf("%q", b))
		}
	})
}

// RFC 4954 §4: a password is not asked for in the clear, but on this machine.
func TestAuthIsNotOfferedInTheClear(t *testing.T) {
	users := accounts(t)
	remote := func(p *peer) string {
		p.say("EHLO proxy", "250")
		p.say("XCLIENT ADDR=203.0.113.9", "220")
		return p.say("EHLO c", "250")
	}
	t.Run("in the clear", func(t *testing.T) {
		p := submission(t, func(c *Config) { c.XClientNets = loopback }).dial()
		if got := remote(p); strings.Contains(got, "AUTH") {
			t.Errorf("%q offers AUTH", got)
		}
		p.say("AUTH PLAIN "+b64("\x00jane\x00secret"), "538 5.7.11")
		p.say("MAIL FROM:<a@b>", "530 5.7.0")
	})
	t.Run("AUTHPLAINTEXT=yes", func(t *testing.T) {
		p := submission(t, func(c *Config) { c.XClientNets, c.Users.Plaintext = loopback, true }).dial()
		if got := remote(p); !strings.Contains(got, "AUTH") {
			t.Errorf("%q does not offer AUTH", got)
		}
		p.say("AUTH PLAIN "+b64("\x00jane\x00secret"), "235")
	})
	t.Run("in TLS", func(t *testing.T) {
		s := startSecured(t, func(c *Config) { c.XClientNets, c.Users.Source = loopback, "file:"+users })
		p := s.implicit()
		if got := remote(p); !strings.Contains(got, "AUTH") {
			t.Errorf("%q does not offer AUTH", got)
		}
		p.say("AUTH PLAIN "+b64("\x00jane\x00secret"), "235")
	})
}
