package auth

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"zmailer/internal/lookup"
	"zmailer/internal/run/assert"
	"zmailer/internal/run/logtest"
)

// TestMain is the program lookup, too.
func TestMain(m *testing.M) {
	if len(os.Args) == 3 && lookup.IsCredentials(os.Args[1]) {
		c := lookup.Credentials{Scheme: os.Args[1], File: os.Args[2], Timeout: 10 * time.Second, In: os.Stdin, Out: os.Stdout}
		if err := lookup.CheckCredentials(context.Background(), c); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// programs returns a directory with a program lookup, which is this one.
func programs(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	self := assert.Get(os.Executable())(t)
	assert.Must(t, os.WriteFile(filepath.Join(dir, "lookup"), []byte("#!/bin/sh\nexec '"+self+"' \"$@\"\n"), 0o755))
	return dir
}

// authorization is a server that knows two tokens (RFC 7662).
func authorization(t *testing.T) *httptest.Server {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id, secret, _ := r.BasicAuth()
		if id != "mail" || secret != "machine" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		answer := map[string]any{"active": false}
		switch r.PostFormValue("token") {
		case "janes":
			answer = map[string]any{"active": true, "username": "jane", "scope": "mail read", "exp": time.Now().Add(time.Hour).Unix()}
		case "other":
			answer = map[string]any{"active": true, "username": "jane", "scope": "read"}
		case "old":
			answer = map[string]any{"active": true, "username": "jane", "scope": "mail", "exp": time.Now().Add(-time.Hour).Unix()}
		case "nobodys":
			answer = map[string]any{"active": true, "scope": "mail"}
		case "slow":
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		_ = json.NewEncoder(w).Encode(answer)
	}))
	t.Cleanup(s.Close)
	return s
}

func xoauth2(user, token string) []byte {
	return []byte("user=" + user + "\x01auth=Bearer " + token + "\x01\x01")
}

func oauthbearer(user, token string) []byte {
	return []byte("n,a=" + user + ",\x01host=mx.example\x01port=587\x01auth=Bearer " + token + "\x01\x01")
}

// Peer12: tokens, by the child that asks the server; temporary where the answer is unknown.
func TestPeer12TokensAreIntrospected(t *testing.T) {
	server := authorization(t)
	dir := t.TempDir()
	write := func(name, text string) string {
		assert.Must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
		return name
	}
	good := write("good", "introspection_url = "+server.URL+"\nclient_id = mail\nclient_secret = machine\nscope = mail\n")
	wrong := write("wrong", "introspection_url = "+server.URL+"\nclient_id = mail\nclient_secret = guess\n")
	away := write("away", "introspection_url = http://127.0.0.1:9/\nclient_id = mail\n")
	open := func(file string) Backend {
		return assert.Get(Open("oauth2:"+file, Options{Dir: dir, Programs: programs(t)}))(t)
	}
	b := open(good)
	assert.Same(t, b.Mechanisms(t.Context()), []string{OAuthBearer, XOAuth2}, "mechanisms")
	temporary := errors.New("any other")
	for name, tt := range map[string]struct {
		b         Backend
		mechanism string
		initial   []byte
		responses []string
		user      string
		err       error
	}{
		"XOAUTH2":                        {b, XOAuth2, xoauth2("jane", "janes"), nil, "jane", nil},
		"XOAUTH2, asked":                 {b, XOAuth2, nil, []string{string(xoauth2("jane", "janes"))}, "jane", nil},
		"OAUTHBEARER":                    {b, OAuthBearer, oauthbearer("jane", "janes"), nil, "jane", nil},
		"OAUTHBEARER without a name":     {b, OAuthBearer, []byte("n,,\x01auth=Bearer janes\x01\x01"), nil, "jane", nil},
		"another user's token":           {b, XOAuth2, xoauth2("joe", "janes"), []string{""}, "", ErrRefused},
		"an unknown token":               {b, XOAuth2, xoauth2("jane", "x"), []string{""}, "", ErrRefused},
		"an unknown one, OAUTHBEARER":    {b, OAuthBearer, oauthbearer("jane", "x"), []string{"\x01"}, "", ErrRefused},
		"without the scope":              {b, XOAuth2, xoauth2("jane", "other"), []string{""}, "", ErrRefused},
		"an old token":                   {b, XOAuth2, xoauth2("jane", "old"), []string{""}, "", ErrRefused},
		"a token of no one":              {b, XOAuth2, xoauth2("jane", "nobodys"), nil, "", temporary},
		"a server in trouble":            {b, XOAuth2, xoauth2("jane", "slow"), nil, "", temporary},
		"a server that does not know us": {open(wrong), XOAuth2, xoauth2("jane", "janes"), nil, "", temporary},
		"a server that is away":          {open(away), XOAuth2, xoauth2("jane", "janes"), nil, "", temporary},
		"no token":                       {b, XOAuth2, []byte("user=jane\x01\x01"), nil, "", ErrSyntax},
		"no end":                         {b, XOAuth2, []byte("user=jane\x01auth=Bearer janes"), nil, "", ErrSyntax},
		"a token of another kind":        {b, OAuthBearer, []byte("n,,\x01auth=Basic janes\x01\x01"), nil, "", ErrSyntax},
		"channel binding":                {b, OAuthBearer, []byte("p=tls-unique,,\x01auth=Bearer janes\x01\x01"), nil, "", ErrSyntax},
		"another mechanism":              {b, Plain, []byte("\x00jane\x00janes"), nil, "", ErrMechanism},
	} {
		t.Run(name, func(t *testing.T) {
			user, err := try(t, tt.b, tt.mechanism, tt.initial, tt.responses...)
			ok := errors.Is(err, tt.err)
			if tt.err == temporary {
				ok = err != nil && !errors.Is(err, ErrRefused) && !errors.Is(err, ErrSyntax)
			}
			if user != tt.user || !ok {
				t.Errorf("got %q, %v, want %q, %v", user, err, tt.user, tt.err)
			}
		})
	}
	// Passwords from one source, tokens from another.
	assert.Must(t, os.WriteFile(filepath.Join(dir, "users"), []byte("jane:$2b$04$......................wG4Bjl1eqJFFSQVmZ2ZQ4z3CqCMPtOG\n"), 0o600))
	both := open(good + " file:users")
	assert.Same(t, both.Mechanisms(t.Context()), []string{OAuthBearer, XOAuth2, Plain, Login}, "mechanisms of both")
	if user, err := try(t, both, XOAuth2, xoauth2("jane", "janes")); user != "jane" || err != nil {
		t.Errorf("%q, %v", user, err)
	}
}

// imap is a server that knows jane's password.
func imap(t *testing.T) net.Listener {
	l := assert.Get(net.Listen("tcp4", "127.0.0.1:0"))(t)
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				fmt.Fprint(c, "* OK\r\n")
				r := bufio.NewReader(c)
				line, _ := r.ReadString('\n')
				tag, rest, _ := strings.Cut(line, " ")
				if strings.Contains(rest, "LOGIN") && strings.Contains(rest, "jane") && strings.Contains(rest, "secret") {
					fmt.Fprint(c, tag+" OK\r\n")
				} else {
					fmt.Fprint(c, tag+" NO\r\n")
				}
			}()
		}
	}()
	return l
}

// realSaslauthd starts Debian's saslauthd, which asks an IMAP server, and waits until it works. start
// starts it anew, stop ends it.
func realSaslauthd(t *testing.T, imap net.Listener) (socket string, start, stop func()) {
	t.Helper()
	program, err := exec.LookPath("/usr/sbin/saslauthd")
	if err != nil {
		t.Skip("no saslauthd; install sasl2-bin")
	}
	if os.Getuid() != 0 {
		t.Skip("saslauthd wants to be started by root")
	}
	dir := assert.Get(os.MkdirTemp("/tmp", "sasl"))(t)
	t.Cleanup(func() { os.RemoveAll(dir) })
	var cmd *exec.Cmd
	b := assert.Get(Open("saslauthd:"+dir+"/mux", Options{}))(t)
	start = func() {
		t.Helper()
		cmd = exec.Command(program, "-d", "-a", "rimap", "-O", fmt.Sprintf("127.0.0.1/%d", imap.Addr().(*net.TCPAddr).Port), "-m", dir, "-n", "1")
		assert.Must(t, cmd.Start())
		logtest.Eventually(t, "saslauthd works", func() bool {
			_, err := try(t, b, Plain, []byte("\x00jane\x00secret"))
			return err == nil
		})
	}
	stop = func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }
	t.Cleanup(func() { stop() })
	start()
	return dir + "/mux", start, stop
}

// Peer12: Debian's saslauthd decides; it asks an IMAP server of ours.
func TestPeer12SaslauthdDecides(t *testing.T) {
	socket, _, _ := realSaslauthd(t, imap(t))
	b := assert.Get(Open("saslauthd:"+socket, Options{}))(t)
	for name, tt := range map[string]struct {
		initial, user string
		err           error
	}{
		"right":       {"\x00jane\x00secret", "jane", nil},
		"wrong":       {"\x00jane\x00guess", "", ErrRefused},
		"unknown":     {"\x00eve\x00guess", "", ErrRefused},
		"empty":       {"\x00jane\x00", "", ErrRefused},
		"a long word": {"\x00jane\x00" + strings.Repeat("x", 2000), "", ErrRefused},
	} {
		if user, err := try(t, b, Plain, []byte(tt.initial)); user != tt.user || !errors.Is(err, tt.err) {
			t.Errorf("%s: %q, %v", name, user, err)
		}
	}
	// It reads a name up to a NUL, so that this client would be jane under another name.
	for _, name := range []string{"jane\x00", "jane\x00@example.net", "jane\x00\n", "jane\n", "\tjane", "jane\u0085"} {
		if user, err := try(t, b, Login, []byte(name), "secret"); user != "" || !errors.Is(err, ErrRefused) {
			t.Errorf("%q: %q, %v", name, user, err)
		}
	}
	away := assert.Get(Open("saslauthd:"+socket+"-other", Options{}))(t)
	if _, err := try(t, away, Plain, []byte("\x00jane\x00secret")); err == nil || errors.Is(err, ErrRefused) {
		t.Errorf("a socket that is not there: %v", err)
	}
}
