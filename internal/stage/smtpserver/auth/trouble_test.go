package auth

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"zmailer/internal/disk/lastgood/lastgoodtest"
	"zmailer/internal/lookup/ldap/ldaptest"
	"zmailer/internal/run/assert"
	"zmailer/test/peer"
	"zmailer/test/rig"
)

// isTemporary reports whether the reply asks the client to try again.
func isTemporary(err error) bool {
	return err != nil && !errors.Is(err, ErrRefused) && !errors.Is(err, ErrSyntax) && !errors.Is(err, ErrMechanism)
}

// attempt tries a password, or a token, that is right or wrong.
type attempt func(long time.Duration, right bool) error

// checkAnswers cuts and holds the answers of a server: the wrong password is never right, the right
// one never refused, and when the server answers again, so do we.
func checkAnswers(t *testing.T, p *peer.Proxy, try attempt) {
	t.Helper()
	for _, right := range []bool{true, false} {
		before := p.Passed()
		if err := try(patience, right); right != (err == nil) || !right && !errors.Is(err, ErrRefused) {
			t.Fatalf("right=%v: %v", right, err)
		}
		length := p.Passed() - before
		if length < 1 {
			t.Fatalf("an answer of %d bytes", length)
		}
		failed := 0
		step := 1 + length/25
		if !right {
			step = 1 + length/4 // each one may be delayed
		}
		for n := int64(0); n < length; n += step {
			p.Cut(n)
			err := try(patience, right)
			p.Pass()
			if err != nil && right && !isTemporary(err) || !right && !isTemporary(err) && !errors.Is(err, ErrRefused) {
				t.Errorf("right=%v, cut behind %d of %d bytes: %v", right, n, length, err)
			}
			if isTemporary(err) {
				failed++
			}
		}
		if failed == 0 {
			t.Errorf("right=%v: no cut made a difference", right)
		}
		p.Hold()
		if err := try(500*time.Millisecond, right); !isTemporary(err) {
			t.Errorf("right=%v, held: %v", right, err)
		}
		p.Pass()
	}
	checkWorks(t, try)
}

func checkWorks(t *testing.T, try attempt) {
	t.Helper()
	if err := try(patience, true); err != nil {
		t.Errorf("the right one: %v", err)
	}
	if err := try(patience, false); !errors.Is(err, ErrRefused) {
		t.Errorf("the wrong one: %v", err)
	}
}

func checkDown(t *testing.T, what string, try attempt) {
	t.Helper()
	for _, right := range []bool{true, false} {
		if err := try(patience, right); !isTemporary(err) {
			t.Errorf("%s, right=%v: %v", what, right, err)
		}
	}
}

// checkGarbage has a server of a network answer what is none, each time without end or with one.
func checkGarbage(t *testing.T, network string, more map[string]string, open func(addr string) attempt) {
	t.Helper()
	answers := map[string]string{
		"nothing": "", "zeros": strings.Repeat("\x00", 4096), "ones": strings.Repeat("\xff", 4096),
		"another protocol": "220 mail.example ESMTP\r\n", "lines": strings.Repeat("OK\n", 1000),
	}
	for name, text := range more {
		answers[name] = text
	}
	for name, text := range answers {
		for _, endless := range []bool{false, true} {
			if endless && text == "" {
				continue
			}
			var sent atomic.Int64
			err := open(rig.Serve(t, network, func(c net.Conn) {
				defer c.Close()
				_, _ = c.Read(make([]byte, 4096))
				b := []byte(text)
				for {
					n, err := c.Write(b)
					if sent.Add(int64(n)); err != nil || !endless {
						return
					}
					if name != "lines" && len(b) == len(text) {
						b = bytes.Repeat([]byte(text[len(text)-1:]), 64<<10)
					}
				}
			}))(patience, true)
			if !isTemporary(err) {
				t.Errorf("%s, endless=%v: %v", name, endless, err)
			}
			if n := sent.Load(); n > 16<<20 {
				t.Errorf("%s, endless=%v: %d bytes were taken", name, endless, n)
			}
		}
	}
}

// checkAlarm has a backend raise an alarm while a server is down, and end it with the first answer
// afterwards: one that refuses, too.
func checkAlarm(t *testing.T, source string, open func(o Options) attempt, start, stop func()) {
	t.Helper()
	alarms := lastgoodtest.Watch(t)
	try := open(Options{Keeper: alarms})
	checkWorks(t, try)
	alarms.Expect(t, "it works")
	for _, right := range []bool{true, false} {
		stop()
		checkDown(t, "down", try)
		alarms.Expect(t, "down", "auth:"+source)
		start()
		if err := try(patience, right); right != (err == nil) || !right && !errors.Is(err, ErrRefused) {
			t.Errorf("up again, right=%v: %v", right, err)
		}
		alarms.Expect(t, "up again")
	}
}

func passwordOf(b Backend, t *testing.T) attempt {
	return func(long time.Duration, right bool) error {
		_, err := tryFor(t, long, b, Plain, fmt.Appendf(nil, "\x00jane\x00%s", map[bool]string{true: "secret", false: "guess"}[right]))
		return err
	}
}

func tokenOf(b Backend, t *testing.T) attempt {
	return func(long time.Duration, right bool) error {
		_, err := tryFor(t, long, b, XOAuth2, xoauth2("jane", map[bool]string{true: "janes", false: "x"}[right]), "")
		return err
	}
}

// Peer12: saslauthd that is down, slow, restarted, cut or garbage refuses no one, and neither does one
// whose own server is away: that answers "NO [ALERT] ..." then.
func TestPeer12SaslauthdInTroubleRefusesNoOne(t *testing.T) {
	asked := imap(t)
	socket, start, stop := realSaslauthd(t, asked)
	through := checkSocket(t, "saslauthd:", socket, start, stop,
		map[string]string{"an answer without a word": "\x00\x00", "neither": "\x00\x05MAYBE", "a long word": "\xff\xffNO", "a million answers": strings.Repeat("\x00\x05MAYBE", 1_000_000)})
	asked.Close()
	checkDown(t, "its IMAP server is away", through)
}

// A real Dovecot that is stopped, restarted, slow or cut refuses no one.
func TestDovecotInTroubleRefusesNoOne(t *testing.T) {
	socket, start, stop := realDovecot(t)
	checkSocket(t, "dovecot:", socket, start, stop, map[string]string{"a greeting": handshake, "a greeting and no sense": handshake + "OK\t2\tuser=jane\n"})
}

// checkSocket has a server at a socket be cut, held, down, up again and replaced by what sends
// garbage. It returns attempts through a proxy that works.
func checkSocket(t *testing.T, scheme, socket string, start, stop func(), garbage map[string]string) (through attempt) {
	t.Helper()
	open := func(socket string, o Options) attempt { return passwordOf(assert.Get(Open(scheme+socket, o))(t), t) }
	p := rig.Proxy(t, "unix", socket)
	through = open(p.Addr(), Options{})
	checkAnswers(t, p, through)
	stop()
	checkDown(t, "down", through)
	start()
	checkWorks(t, through)
	checkAlarm(t, scheme+socket, func(o Options) attempt { return open(socket, o) }, start, stop)
	checkGarbage(t, "unix", garbage, func(socket string) attempt { return open(socket, Options{}) })
	return through
}

// Peer12: an authorization server that is slow, cut, garbage or answers without end refuses no token.
func TestPeer12AuthorizationServerInTroubleRefusesNoOne(t *testing.T) {
	dir, programs := t.TempDir(), programs(t)
	n := 0
	open := func(addr string) attempt {
		n++
		name := fmt.Sprintf("oauth2-%d", n)
		assert.Must(t, os.WriteFile(filepath.Join(dir, name), []byte("introspection_url = http://"+addr+"\nclient_id = mail\nclient_secret = machine\n"), 0o600))
		b := assert.Get(Open("oauth2:"+name, Options{Dir: dir, Programs: programs}))(t)
		return tokenOf(b, t)
	}
	server := authorization(t)
	p := rig.Proxy(t, "tcp", server.Listener.Addr().String())
	through := open(p.Addr())
	checkAnswers(t, p, through)
	const head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n"
	checkGarbage(t, "tcp", map[string]string{
		"no end of the header": "HTTP/1.1 200 OK\r\nX: x", "no JSON": head + "yes", "a list": head + "[true]",
		"no answer": head + "{}", "a word": head + `{"active":"false"}`,
	}, open)
	// Stopped, and started again at the same address.
	addr := server.Listener.Addr().String()
	checkAlarm(t, "oauth2:oauth2", func(o Options) attempt {
		o.Dir, o.Programs = dir, programs
		assert.Must(t, os.WriteFile(filepath.Join(dir, "oauth2"), []byte("introspection_url = http://"+addr+"\nclient_id = mail\nclient_secret = machine\n"), 0o600))
		return tokenOf(assert.Get(Open("oauth2:oauth2", o))(t), t)
	}, func() {
		again := httptest.NewUnstartedServer(server.Config.Handler)
		again.Listener.Close()
		again.Listener = assert.Get(net.Listen("tcp", addr))(t)
		again.Start()
		server = again
		t.Cleanup(again.Close)
	}, func() { server.Close() })
	checkWorks(t, through)
	large := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, `{"active":false,"x":"`+strings.Repeat("x", 1<<20)+`"}`)
	}))
	t.Cleanup(large.Close)
	checkDown(t, "an answer of a megabyte", open(large.Listener.Addr().String()))
}

// Peer12: a directory that is away is an alarm, which ends when it decides again.
func TestPeer12DirectoryThatIsAwayIsAnAlarm(t *testing.T) {
	s := ldaptest.Start(t)
	dir := t.TempDir()
	assert.Must(t, os.WriteFile(filepath.Join(dir, "ldap"), fmt.Appendf(nil,
		"url = ldap://%s\nbase = ou=people,dc=example,dc=org\nfilter = (cn=%%u)\nbind_dn = cn=root,dc=example,dc=org\npassword = %s\n", s.Addr, ldaptest.Password), 0o600))
	checkAlarm(t, "ldap:ldap", func(o Options) attempt {
		o.Dir, o.Programs = dir, programs(t)
		b := assert.Get(Open("ldap:ldap", o))(t)
		return func(long time.Duration, right bool) error {
			_, err := tryFor(t, long, b, Plain, fmt.Appendf(nil, "\x00bond\x00%s", map[bool]string{true: "secret", false: "guess"}[right]))
			return err
		}
	}, s.Start, s.Stop)
}

// Peer9: a PAM whose modules or child are in trouble is an alarm; whoever has gone raises none.
func TestPeer9PAMInTroubleIsAnAlarm(t *testing.T) {
	dir := t.TempDir()
	script := func(text string) func() {
		return func() {
			// Renamed: a program that is being written cannot be run.
			fresh := filepath.Join(dir, "fresh")
			assert.Must(t, os.WriteFile(fresh, []byte("#!/bin/sh\n"+text+"\n"), 0o755), os.Rename(fresh, filepath.Join(dir, "lookup")))
		}
	}
	works := script(`read q; case "$q" in *secret*) echo '{"result":"ok","user":"jane"}';; *) echo '{"result":"refused"}'; esac`)
	for name, trouble := range map[string]string{"a module": `echo '{"result":"trouble","reason":"no such module"}'`, "its child": "kill -SEGV $$"} {
		t.Run(name, func(t *testing.T) {
			works()
			checkAlarm(t, "pam:smtp", func(o Options) attempt {
				o.Programs = dir
				return passwordOf(assert.Get(Open("pam:smtp", o))(t), t)
			}, works, script(trouble))
		})
	}
}

// A Dovecot that answers, but cannot decide about anyone, is an alarm that its greeting does not end;
// no client ends or raises one without having it asked.
func TestDovecotThatCannotDecideIsAnAlarm(t *testing.T) {
	var works atomic.Bool
	socket := scripted(t, handshake, func(line string) string {
		switch {
		case works.Load() && strings.HasPrefix(line, "AUTH\t"):
			return "OK\t1\tuser=jane\n"
		case strings.HasPrefix(line, "AUTH\t"):
			return "FAIL\t1\tuser=jane\ttemp\n"
		}
		return ""
	})
	alarms := lastgoodtest.Watch(t)
	clock := time.Now()
	b := assert.Get(Open("dovecot:"+socket, Options{Keeper: alarms, Now: func() time.Time { return clock }}))(t)
	try := passwordOf(b, t)
	if err := try(patience, true); !isTemporary(err) {
		t.Errorf("got %v", err)
	}
	alarms.Expect(t, "it cannot decide", "auth:dovecot:"+socket)
	clock = clock.Add(time.Hour)
	if len(b.Mechanisms(t.Context())) == 0 {
		t.Error("no mechanisms")
	}
	alarms.Expect(t, "it greets", "auth:dovecot:"+socket)
	works.Store(true)
	assert.Must(t, try(patience, true))
	alarms.Expect(t, "it decides")

	away := assert.Get(Open("dovecot:"+socket+"-other", Options{Keeper: alarms, Now: func() time.Time { return clock }}))(t)
	away.Mechanisms(t.Context())
	alarms.Expect(t, "no one has tried a password", "auth:dovecot:"+socket+"-other")
}
