package ldap

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"zmailer/internal/lookup/ldap/ldaptest"
	"zmailer/internal/lookup/settings"
	"zmailer/internal/run/assert"
	"zmailer/test/peer"
)

const limit = time.Minute

func open(t testing.TB, c settings.LDAP, timeout time.Duration) *Directory {
	t.Helper()
	d := assert.Get(Open(c, timeout))(t)
	t.Cleanup(func() { d.Close() })
	return d
}

// says returns what a lookup comes to, as text.
func says(d *Directory, key string) string {
	ctx, cancel := context.WithTimeout(context.Background(), d.timeout)
	defer cancel()
	text, ok, err := d.Lookup(ctx, key)
	switch {
	case err != nil:
		return "error: " + err.Error()
	case !ok:
		return "none"
	}
	return text
}

func TestEntriesOfAKeyAreItsValue(t *testing.T) {
	s := ldaptest.Start(t)
	d := open(t, s.Settings(), limit)
	for key, want := range map[string]string{
		"bond": "jane, joe", "BOND": "jane, joe", "bond@example.org": "jane, joe", "nobody": "none", "star*": "none", "star@example.org": "none",
		"*": "none", "bo*": "none", ")(cn=*": "none", "\x00": "none", "": "none",
	} {
		assert.Equal(t, says(d, key), want, key)
	}
	c := s.Settings()
	c.Attributes = nil
	d = open(t, c, limit)
	assert.Equal(t, says(d, "star*")+says(d, "nobody"), "none", "recipients that exist")
}

func TestDirectoryThatCannotBeAskedIsNeverANo(t *testing.T) {
	s := ldaptest.Start(t)
	for name, tt := range map[string]struct {
		change func(c *settings.LDAP)
		want   string
	}{
		"base that is not there": {func(c *settings.LDAP) { c.Base = "ou=none," + c.Base }, "No Such Object"},
		"part that is elsewhere": {func(c *settings.LDAP) { c.Base = "ou=elsewhere,dc=example,dc=org" }, "Referral"},
		"rest that is elsewhere": {func(c *settings.LDAP) { c.Base = "dc=example,dc=org" }, "the rest is elsewhere"},
		"more than the limit":    {func(c *settings.LDAP) { c.Limit, c.Filter = 1, "(|(cn=*)(cn=%s))" }, "Size Limit"},
		"wrong password":         {func(c *settings.LDAP) { c.Password = "x" }, "Invalid Credentials"},
		"anonymous may not read": {func(c *settings.LDAP) { c.BindDN, c.Password = "", "" }, "Insufficient Access"},
		"no TLS there":           {func(c *settings.LDAP) { c.StartTLS = true }, "start_tls"},
		"no server listens":      {func(c *settings.LDAP) { c.URLs = []string{"ldap://127.0.0.1:1"} }, "refused"},
	} {
		t.Run(name, func(t *testing.T) {
			c := s.Settings()
			tt.change(&c)
			if got := says(open(t, c, limit), "bond"); !strings.HasPrefix(got, "error") || !strings.Contains(got, tt.want) {
				t.Errorf("got %q, want an error with %q", got, tt.want)
			}
		})
	}
	c := s.Settings()
	c.Base, c.IgnoreReferrals = "dc=example,dc=org", true
	assert.Equal(t, says(open(t, c, limit), "bond"), "jane, joe", "the rest does not matter")
	c.URLs = []string{"ldap://127.0.0.1:1", c.URLs[0]}
	assert.Equal(t, says(open(t, c, limit), "bond"), "jane, joe", "the second server")
}

func TestDirectoryDownAndUpAgain(t *testing.T) {
	s := ldaptest.Start(t)
	d := open(t, s.Settings(), limit)
	if got := says(d, "bond"); got != "jane, joe" {
		t.Fatalf("up: got %q", got)
	}
	s.Stop()
	for _, key := range []string{"bond", "nobody"} {
		if got := says(d, key); !strings.HasPrefix(got, "error") {
			t.Errorf("down: %s: got %q, want an error", key, got)
		}
	}
	s.Start()
	assert.Equal(t, says(d, "bond")+says(d, "nobody"), "jane, joenone", "up again")
	// Restarted between two questions: the idle connection's end is no failure.
	s.Stop()
	s.Start()
	assert.Equal(t, says(d, "nobody")+says(d, "bond"), "nonejane, joe", "restarted")
	// Stopped: it is connected to, and says nothing.
	s.Halt()
	d.timeout = 200 * time.Millisecond
	if got := says(d, "bond"); !strings.HasPrefix(got, "error") {
		t.Errorf("hanging: got %q, want an error", got)
	}
	assert.Must(t, s.Continue())
	d.timeout = limit
	assert.Equal(t, says(d, "bond"), "jane, joe", "going on")
}

// Peer12: a user's password is checked by a bind as the entry that the filter finds.
func TestPeer12PasswordsAreCheckedByBind(t *testing.T) {
	s := ldaptest.Start(t)
	c := settings.LDAP{URLs: []string{"ldap://" + s.Addr}, BindDN: "cn=root,dc=example,dc=org", Password: ldaptest.Password,
		Base: "ou=people,dc=example,dc=org", Scope: "sub", Filter: "(&(objectClass=inetOrgPerson)(cn=%u))", Limit: 2}
	several := c
	several.Filter = "(|(cn=%u)(objectClass=inetOrgPerson))"
	wrong := c
	wrong.Password = "guess"
	away := c
	away.URLs = []string{"ldap://127.0.0.1:9"}
	temporary := errors.New("any other")
	for name, tt := range map[string]struct {
		c              settings.LDAP
		user, password string
		want           error
	}{
		"right":                           {c, "bond", "secret", nil},
		"wrong":                           {c, "bond", "guess", ErrRefused},
		"no password, which binds no one": {c, "bond", "", ErrRefused},
		"unknown":                         {c, "eve", "secret", ErrRefused},
		"an entry without a password":     {c, "star*", "secret", ErrRefused},
		"a filter in the name":            {c, "*", "secret", ErrRefused},
		"a filter in the name, closed":    {c, "bond)(cn=*", "secret", ErrRefused},
		"in capitals":                     {c, "BOND", "secret", nil},
		"a blank behind the name":         {c, "bond ", "secret", ErrRefused},
		"blanks before the name":          {c, "  bond", "secret", ErrRefused},
		"letters of double width":         {c, "\uff42\uff4f\uff4e\uff44", "secret", ErrRefused},
		"a soft hyphen":                   {c, "bo\u00adnd", "secret", ErrRefused},
		"a filter that finds two":         {several, "bond", "secret", temporary},
		"we cannot bind":                  {wrong, "bond", "secret", temporary},
		"a server that is away":           {away, "bond", "secret", temporary},
	} {
		err := Bind(t.Context(), tt.c, limit, tt.user, tt.password)
		ok := errors.Is(err, tt.want) && (err == nil) == (tt.want == nil)
		if tt.want == temporary {
			ok = err != nil && !errors.Is(err, ErrRefused)
		}
		if !ok {
			t.Errorf("%s: %v, want %v", name, err, tt.want)
		}
	}
}

// Peer12: a directory that is slow, restarted, cut or answers garbage refuses no password, and takes none.
func TestPeer12BindAtADirectoryInTroubleIsNeverANo(t *testing.T) {
	s := ldaptest.Start(t)
	p := assert.Get(peer.NewProxy("tcp", "127.0.0.1:0", s.Addr))(t)
	t.Cleanup(p.Close)
	c := s.Settings()
	c.Filter, c.Attributes, c.Limit, c.URLs = "(&(objectClass=inetOrgPerson)(cn=%u))", nil, 2, []string{"ldap://" + p.Addr()}
	bind := func(long time.Duration, word string) error {
		ctx, cancel := context.WithTimeout(t.Context(), long)
		defer cancel()
		return Bind(ctx, c, long, "bond", word)
	}
	for word, want := range map[string]error{"secret": nil, "guess": ErrRefused} {
		before := p.Passed()
		if err := bind(limit, word); !errors.Is(err, want) {
			t.Fatalf("%s: %v", word, err)
		}
		length := p.Passed() - before
		for n := range length {
			p.Cut(n)
			err := bind(limit, word)
			p.Pass()
			if err == nil || errors.Is(err, ErrRefused) {
				t.Errorf("%s, cut behind %d of %d bytes: %v", word, n, length, err)
			}
		}
		p.Hold()
		if err := bind(200*time.Millisecond, word); err == nil || errors.Is(err, ErrRefused) {
			t.Errorf("%s, held: %v", word, err)
		}
		p.Pass()
		s.Stop()
		if err := bind(limit, word); err == nil || errors.Is(err, ErrRefused) {
			t.Errorf("%s, down: %v", word, err)
		}
		s.Start()
		if err := bind(limit, word); !errors.Is(err, want) {
			t.Errorf("%s, up again: %v", word, err)
		}
	}
	for name, text := range map[string]string{
		"nothing": "", "zeros": strings.Repeat("\x00", 4096), "text": "220 mail.example ESMTP\r\n", "an OK with a wrong number": "\x30\x0c\x02\x01\x63\x61\x07\x0a\x01\x00\x04\x00\x04\x00",
		"another operation": "\x30\x0c\x02\x01\x01\x65\x07\x0a\x01\x00\x04\x00\x04\x00", "a gigabyte": "\x30\x84\x3f\xff\xff\xff\x04\x84\x3f\xff\xff\xf0",
	} {
		l := assert.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
		t.Cleanup(func() { l.Close() })
		go func() {
			for {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				_, _ = conn.Read(make([]byte, 4096))
				_, _ = conn.Write([]byte(text))
				_ = conn.(*net.TCPConn).CloseWrite()
				_, _ = io.Copy(io.Discard, conn)
				conn.Close()
			}
		}()
		c.URLs = []string{"ldap://" + l.Addr().String()}
		if err := bind(limit, "secret"); err == nil || errors.Is(err, ErrRefused) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
