package smtpclient

import (
	"encoding/base64"
	"errors"
	"strings"
	"testing"

	"github.com/xdg-go/scram"
)

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
			if got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
			if strings.Contains(conn.HelloText(), b64("secret")) || strings.Contains(conn.HelloText(), b64("\x00u\x00secret")) {
				t.Errorf("the dialogue has the password: %s", conn.HelloText())
			}
			p.end(t)
		})
	}
}

// scramServer is the library's server side, with its nonce and salt fixed on both sides so
// that the exchange can be a script.
func scramServer(t *testing.T, password string) *scram.ServerConversation {
	t.Helper()
	client, err := scram.SHA256.NewClient("u", password, "")
	if err != nil {
		t.Fatal(err)
	}
	stored, err := client.GetStoredCredentialsWithError(scram.KeyFactors{Salt: "0123456789abcdef", Iters: 4096})
	if err != nil {
		t.Fatal(err)
	}
	server, err := scram.SHA256.NewServer(func(string) (scram.StoredCredentials, error) { return stored, nil })
	if err != nil {
		t.Fatal(err)
	}
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
	if err := c.Hello(); err != nil {
		t.Fatal(err)
	}
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
			if got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
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
		if got := tooMany(challenge); got != want {
			t.Errorf("%s: got %v", challenge, got)
		}
	}
}
