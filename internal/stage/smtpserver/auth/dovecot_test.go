package auth

import (
	"bufio"
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/md5"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/xdg-go/scram"

	"zmailer/internal/run/assert"
	"zmailer/internal/run/logtest"
)

const patience = 20 * time.Second

// try goes through an exchange; responses stand behind the initial one.
func try(t *testing.T, b Backend, mechanism string, initial []byte, responses ...string) (user string, err error) {
	t.Helper()
	return tryFor(t, patience, b, mechanism, initial, responses...)
}

// tryFor is a try that is given up after a while.
func tryFor(t *testing.T, long time.Duration, b Backend, mechanism string, initial []byte, responses ...string) (user string, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), long)
	defer cancel()
	peer := Peer{Remote: netip.MustParseAddrPort("192.0.2.7:1234"), Local: netip.MustParseAddrPort("192.0.2.1:587"), TLS: true}
	e, err := b.Start(ctx, mechanism, peer)
	if err != nil {
		return "", err
	}
	defer e.Close()
	response := initial
	for {
		_, done, err := e.Next(ctx, response)
		if err != nil || done {
			return e.User(), err
		}
		if len(responses) == 0 {
			t.Fatal("it asks for more")
		}
		response, responses = []byte(responses[0]), responses[1:]
	}
}

// tryCRAM returns the same for CRAM-MD5 (RFC 2195).
func tryCRAM(t *testing.T, b Backend, user, password string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	e, err := b.Start(ctx, "CRAM-MD5", Peer{TLS: true})
	if err != nil {
		return "", err
	}
	defer e.Close()
	challenge, _, err := e.Next(ctx, nil)
	if err != nil {
		return "", err
	}
	h := hmac.New(md5.New, []byte(password))
	h.Write(challenge)
	_, _, err = e.Next(ctx, fmt.Appendf(nil, "%s %x", user, h.Sum(nil)))
	return e.User(), err
}

// tryScram returns the same for SCRAM.
func tryScram(t *testing.T, b Backend, user, password string) (string, error) {
	t.Helper()
	c := assert.Get(scram.SHA256.NewClient(user, password, ""))(t)
	talk := c.NewConversation()
	first := assert.Get(talk.Step(""))(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	e, err := b.Start(ctx, ScramSHA256, Peer{TLS: true})
	if err != nil {
		return "", err
	}
	defer e.Close()
	response := []byte(first)
	for {
		challenge, done, err := e.Next(ctx, response)
		if err != nil || done {
			if err == nil && !talk.Valid() {
				t.Error("the server did not prove that it knows the password")
			}
			return e.User(), err
		}
		text, err := talk.Step(string(challenge))
		if err != nil {
			return "", fmt.Errorf("the client refuses %q: %w", challenge, err)
		}
		response = []byte(text)
	}
}

// realDovecot starts a Dovecot with a configuration and users of the test's own, and waits until it
// works. start starts it anew, stop ends it.
func realDovecot(t *testing.T) (socket string, start, stop func()) {
	t.Helper()
	program, err := exec.LookPath("dovecot")
	if err != nil {
		if program, err = exec.LookPath("/usr/sbin/dovecot"); err != nil {
			t.Skip("skipped: dovecot is not installed")
		}
	}
	if os.Getuid() != 0 {
		t.Skip("skipped: dovecot wants to be started by root")
	}
	// Its sockets have short names alone.
	dir := assert.Get(os.MkdirTemp("/tmp", "dovecot"))(t)
	t.Cleanup(func() { os.RemoveAll(dir) })
	assert.Must(t, os.Chmod(dir, 0o755))
	socket = filepath.Join(dir, "client")
	url := strings.Replace(authorization(t).URL, "http://", "http://mail:machine@", 1)
	tokens := "introspection_mode = post\nintrospection_url = " + url + "\nusername_attribute = username\nactive_attribute = active\nactive_value = true\n"
	conf := strings.ReplaceAll(`protocols =
base_dir = DIR/run
state_dir = DIR/state
log_path = DIR/log
auth_verbose = yes
ssl = no
auth_mechanisms = plain login scram-sha-256 cram-md5 xoauth2 oauthbearer
auth_failure_delay = 0
passdb {
  driver = oauth2
  mechanisms = xoauth2 oauthbearer
  args = DIR/oauth2.conf
}
passdb {
  driver = passwd-file
  args = DIR/users
}
userdb {
  driver = static
  args = uid=nobody gid=nogroup home=/nonexistent
}
service anvil {
  unix_listener anvil-auth-penalty {
    mode = 0
  }
}
service auth {
  unix_listener DIR/client {
    mode = 0600
  }
}
`, "DIR", dir)
	for name, text := range map[string]string{"conf": conf, "oauth2.conf": tokens, "users": "jane:{PLAIN}secret::::::\njoe:{PLAIN}secret::::::nologin=y\n"} {
		assert.Must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	var cmd *exec.Cmd
	var said bytes.Buffer
	b := assert.Get(Open("dovecot:"+socket, Options{}))(t)
	start = func() {
		t.Helper()
		cmd = exec.Command(program, "-F", "-c", filepath.Join(dir, "conf"))
		cmd.Stdout, cmd.Stderr = &said, &said
		assert.Must(t, cmd.Start())
		logtest.Eventually(t, "dovecot works", func() bool {
			_, err := try(t, b, Plain, []byte("\x00jane\x00secret"))
			return err == nil
		})
	}
	stop = func() {
		_ = cmd.Process.Signal(os.Interrupt)
		_ = cmd.Wait()
	}
	t.Cleanup(func() {
		stop()
		if t.Failed() {
			text, _ := os.ReadFile(filepath.Join(dir, "log"))
			t.Logf("%s\n%s", said.String(), text)
		}
	})
	start()
	return socket, start, stop
}

func TestDovecotDecides(t *testing.T) {
	socket, _, _ := realDovecot(t)
	b := assert.Get(Open("dovecot:"+socket, Options{}))(t)
	assert.Same(t, b.Mechanisms(t.Context()), []string{ScramSHA256, Plain, Login, "CRAM-MD5", OAuthBearer, XOAuth2}, "mechanisms")
	for name, tt := range map[string]struct {
		user string
		err  error
		try  func() (string, error)
	}{
		"PLAIN":           {"jane", nil, func() (string, error) { return try(t, b, Plain, []byte("\x00jane\x00secret")) }},
		"PLAIN, asked":    {"jane", nil, func() (string, error) { return try(t, b, Plain, nil, "\x00jane\x00secret") }},
		"upper case":      {"jane", nil, func() (string, error) { return try(t, b, Plain, []byte("\x00JANE\x00secret")) }},
		"PLAIN, wrong":    {"", ErrRefused, func() (string, error) { return try(t, b, Plain, []byte("\x00jane\x00wrong")) }},
		"PLAIN, unknown":  {"", ErrRefused, func() (string, error) { return try(t, b, Plain, []byte("\x00eve\x00secret")) }},
		"PLAIN, no PLAIN": {"", ErrRefused, func() (string, error) { return try(t, b, Plain, []byte("jane")) }},
		"a tab":           {"", ErrRefused, func() (string, error) { return try(t, b, Plain, []byte("\x00jane\tOK\x00secret")) }},
		"LOGIN":           {"jane", nil, func() (string, error) { return try(t, b, Login, nil, "jane", "secret") }},
		"LOGIN, wrong":    {"", ErrRefused, func() (string, error) { return try(t, b, Login, nil, "jane", "wrong") }},
		"SCRAM":           {"jane", nil, func() (string, error) { return tryScram(t, b, "jane", "secret") }},
		"SCRAM, wrong":    {"", ErrRefused, func() (string, error) { return tryScram(t, b, "jane", "wrong") }},
		"not offered":     {"", ErrMechanism, func() (string, error) { return try(t, b, "DIGEST-MD5", nil) }},
		// Peer12: what Dovecot has is passed on.
		"CRAM-MD5":              {"jane", nil, func() (string, error) { return tryCRAM(t, b, "jane", "secret") }},
		"CRAM-MD5, wrong":       {"", ErrRefused, func() (string, error) { return tryCRAM(t, b, "jane", "wrong") }},
		"XOAUTH2":               {"jane", nil, func() (string, error) { return try(t, b, XOAuth2, xoauth2("jane", "janes")) }},
		"XOAUTH2, wrong":        {"", ErrRefused, func() (string, error) { return try(t, b, XOAuth2, xoauth2("jane", "x"), "") }},
		"XOAUTH2, another user": {"", ErrRefused, func() (string, error) { return try(t, b, XOAuth2, xoauth2("joe", "janes"), "") }},
		"OAUTHBEARER":           {"jane", nil, func() (string, error) { return try(t, b, OAuthBearer, oauthbearer("jane", "janes")) }},
		"OAUTHBEARER, wrong":    {"", ErrRefused, func() (string, error) { return try(t, b, OAuthBearer, oauthbearer("jane", "x"), "\x01") }},
	} {
		t.Run(name, func(t *testing.T) {
			if user, err := tt.try(); user != tt.user || !errors.Is(err, tt.err) || (err == nil) != (tt.err == nil) {
				t.Errorf("got %q, %v, want %q, %v", user, err, tt.user, tt.err)
			}
		})
	}
}

const handshake = "VERSION\t1\t2\nMECH\tPLAIN\tplaintext\nMECH\tSCRAM-SHA-256\nMECH\tEXTERNAL\nMECH\tSCRAM-SHA-256-PLUS\nSPID\t1\nCUID\t1\nCOOKIE\tabc\nDONE\n"

// scripted returns a server that greets, and answers each AUTH and CONT line.
func scripted(t *testing.T, greeting string, answer func(line string) string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	l := assert.Get(net.Listen("unix", path))(t)
	var all sync.WaitGroup
	t.Cleanup(func() { l.Close(); all.Wait() })
	all.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() {
				defer c.Close()
				fmt.Fprint(c, greeting)
				lines := bufio.NewScanner(c)
				for lines.Scan() {
					if s := lines.Text(); strings.HasPrefix(s, "AUTH\t") || strings.HasPrefix(s, "CONT\t") {
						said := answer(s)
						if said == "" {
							return
						}
						fmt.Fprint(c, said)
					}
				}
			})
		}
	})
	return path
}

func TestWhatDovecotMaySay(t *testing.T) {
	for name, tt := range map[string]struct {
		greeting, answer string
		user             string
		err              error // nil and no user: any other error
	}{
		"OK":                   {handshake, "OK\t1\tuser=jane\textra\n", "jane", nil},
		"a name with a tab":    {handshake, "OK\t1\tuser=ja\x01tne\x011\n", "ja\tne\x01", nil},
		"something new before": {handshake, "NEWS\t1\tx\nOK\t2\tuser=eve\nOK\t1\tuser=jane\n", "jane", nil},
		"refused":              {handshake, "FAIL\t1\tuser=jane\n", "", ErrRefused},
		"trouble":              {handshake, "FAIL\t1\tuser=jane\ttemp\n", "", nil},
		"trouble, 2.3":         {handshake, "FAIL\t1\tuser=jane\tcode=temp_fail\n", "", nil},
		"OK for no one":        {handshake, "OK\t1\n", "", nil},
		"it goes away":         {handshake, "", "", nil},
		"an endless line":      {handshake, "OK\t1\tuser=" + strings.Repeat("x", 1<<20) + "\n", "", nil},
		"another protocol":     {"VERSION\t2\t0\nDONE\n", "OK\t1\tuser=jane\n", "", nil},
		"no version":           {"MECH\tPLAIN\nDONE\n", "OK\t1\tuser=jane\n", "", nil},
		"an endless greeting":  {strings.Repeat("SPID\t1\n", 10_000), "", "", nil},
		"no PLAIN":             {strings.Replace(handshake, "MECH\tPLAIN", "MECH\tLOGIN", 1), "OK\t1\tuser=jane\n", "", ErrMechanism},
		"PLAIN for itself":     {strings.Replace(handshake, "PLAIN\tplaintext", "PLAIN\tplaintext\tprivate", 1), "OK\t1\tuser=jane\n", "", ErrMechanism},
	} {
		t.Run(name, func(t *testing.T) {
			var mu sync.Mutex
			asked := ""
			b, err := Open("dovecot:"+scripted(t, tt.greeting, func(line string) string {
				mu.Lock()
				defer mu.Unlock()
				asked = line
				return tt.answer
			}), Options{})
			assert.Must(t, err)
			user, err := try(t, b, Plain, []byte("\x00jane\x00secret"))
			temporary := tt.err == nil && tt.user == ""
			if user != tt.user || tt.err != nil && !errors.Is(err, tt.err) || temporary && (err == nil || errors.Is(err, ErrRefused)) {
				t.Errorf("got %q, %v", user, err)
			}
			mu.Lock()
			defer mu.Unlock()
			if want := "AUTH\t1\tPLAIN\tservice=smtp\tnologin\tlip=192.0.2.1\tlport=587\trip=192.0.2.7\trport=1234\tsecured=tls\ttls=TLS\tresp=AGphbmUAc2VjcmV0"; asked != "" && asked != want {
				t.Errorf("asked %q, want %q", asked, want)
			}
		})
	}
}

func TestMechanismsOfDovecotAreRemembered(t *testing.T) {
	now := time.Now()
	path := scripted(t, handshake, func(string) string { return "" })
	b := assert.Get(Open("dovecot:"+path, Options{Now: func() time.Time { return now }}))(t)
	want := []string{ScramSHA256, Plain}
	assert.Same(t, b.Mechanisms(t.Context()), want)
	assert.Must(t, os.Remove(path))
	now = now.Add(time.Hour)
	assert.Same(t, b.Mechanisms(t.Context()), want, "while it is away")
}

func FuzzParseAnswer(f *testing.F) {
	for _, s := range []string{"OK\t1\tuser=jane", "CONT\t1\tYWJj", "CONT\t1", "FAIL\t1\tuser=x\ttemp", "OK\t2", "\t", "OK\t1\tuser=\x01t\x01"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, line string) {
		a, ok := parseAnswer(strings.Split(line, "\t"))
		if ok && a.verb != "OK" && a.verb != "CONT" && a.verb != "FAIL" {
			t.Errorf("%q: verb %q", line, a.verb)
		}
	})
}
