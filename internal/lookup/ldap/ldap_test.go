package ldap

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"zmailer/internal/lookup/settings"
	"zmailer/internal/run/assert"
	"zmailer/test/peer"
)

const limit = time.Minute

const password = "pass word"

// slapd is a real server with a directory of its own.
type slapd struct {
	t    testing.TB
	dir  string
	addr string // host:port
	cmd  *exec.Cmd
}

const tree = `dn: dc=example,dc=org
objectClass: dcObject
objectClass: organization
o: x
dc: example

dn: ou=people,dc=example,dc=org
objectClass: organizationalUnit
ou: people

dn: cn=bond,ou=people,dc=example,dc=org
objectClass: inetOrgPerson
cn: bond
sn: Bond
mail: bond@example.org
userPassword: secret
description: jane
description: joe

dn: cn=star,ou=people,dc=example,dc=org
objectClass: inetOrgPerson
cn: star*
sn: Star
mail: star@example.org

dn: ou=elsewhere,dc=example,dc=org
objectClass: referral
objectClass: extensibleObject
ou: elsewhere
ref: ldap://127.0.0.1:1/ou=elsewhere,dc=example,dc=org
`

// newSlapd makes a server and starts it.
func newSlapd(t testing.TB) *slapd {
	t.Helper()
	if testing.Short() {
		t.Skip("starts slapd")
	}
	path, err := exec.LookPath("/usr/sbin/slapd")
	if err != nil {
		t.Skip("slapd is not installed: apt-get install slapd")
	}
	l := assert.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	s := &slapd{t: t, dir: t.TempDir(), addr: l.Addr().String()}
	l.Close()
	conf := fmt.Sprintf(`include /etc/ldap/schema/core.schema
include /etc/ldap/schema/cosine.schema
include /etc/ldap/schema/inetorgperson.schema
modulepath /usr/lib/ldap
moduleload back_mdb
database mdb
suffix "dc=example,dc=org"
rootdn "cn=root,dc=example,dc=org"
rootpw "%s"
directory %s/db
access to * by dn="cn=root,dc=example,dc=org" write by anonymous auth
`, password, s.dir)
	for name, text := range map[string]string{"slapd.conf": conf, "tree.ldif": tree} {
		assert.Must(t, os.WriteFile(filepath.Join(s.dir, name), []byte(text), 0o600))
	}
	assert.Must(t, os.Mkdir(filepath.Join(s.dir, "db"), 0o700))
	add := exec.Command(path, "-T", "add", "-f", s.dir+"/slapd.conf", "-l", s.dir+"/tree.ldif")
	if out, err := add.CombinedOutput(); err != nil {
		t.Skipf("this slapd cannot be used: %v\n%s", err, out)
	}
	s.start()
	t.Cleanup(s.stop)
	return s
}

// start starts the server and waits until it can be connected to.
func (s *slapd) start() {
	s.t.Helper()
	s.cmd = exec.Command("/usr/sbin/slapd", "-d", "0", "-f", s.dir+"/slapd.conf", "-h", "ldap://"+s.addr+"/")
	assert.Must(s.t, s.cmd.Start())
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.After(limit); ; {
		c, err := net.Dial("tcp", s.addr)
		if err == nil {
			c.Close()
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			s.t.Fatalf("slapd does not listen: %v", err)
		}
	}
}

// halt stops the server's threads where they are, and waits until they stand.
func (s *slapd) halt() {
	s.t.Helper()
	assert.Must(s.t, s.cmd.Process.Signal(syscall.SIGSTOP))
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for deadline := time.After(limit); ; {
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", s.cmd.Process.Pid))
		assert.Must(s.t, err)
		if !slices.ContainsFunc(threads, func(name string) bool {
			b, err := os.ReadFile(name)
			return err == nil && !strings.Contains(string(b), ") T ")
		}) {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			s.t.Fatal("slapd does not stop")
		}
	}
}

// stop kills the server, stopped or not.
func (s *slapd) stop() {
	if s.cmd != nil {
		_ = s.cmd.Process.Kill()
		_ = s.cmd.Wait()
	}
	s.cmd = nil
}

func (s *slapd) settings() settings.LDAP {
	return settings.LDAP{
		URLs: []string{"ldap://" + s.addr}, BindDN: "cn=root,dc=example,dc=org", Password: password, Base: "ou=people,dc=example,dc=org",
		Scope: "sub", Filter: "(&(objectClass=inetOrgPerson)(|(cn=%s)(mail=%s)))", Attributes: []string{"description"}, Limit: 10,
	}
}

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
	s := newSlapd(t)
	d := open(t, s.settings(), limit)
	for key, want := range map[string]string{
		"bond": "jane, joe", "BOND": "jane, joe", "bond@example.org": "jane, joe", "nobody": "none", "star*": "none", "star@example.org": "none",
		"*": "none", "bo*": "none", ")(cn=*": "none", "\x00": "none", "": "none",
	} {
		assert.Equal(t, says(d, key), want, key)
	}
	c := s.settings()
	c.Attributes = nil
	d = open(t, c, limit)
	assert.Equal(t, says(d, "star*")+says(d, "nobody"), "none", "recipients that exist")
}

func TestDirectoryThatCannotBeAskedIsNeverANo(t *testing.T) {
	s := newSlapd(t)
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
			c := s.settings()
			tt.change(&c)
			if got := says(open(t, c, limit), "bond"); !strings.HasPrefix(got, "error") || !strings.Contains(got, tt.want) {
				t.Errorf("got %q, want an error with %q", got, tt.want)
			}
		})
	}
	c := s.settings()
	c.Base, c.IgnoreReferrals = "dc=example,dc=org", true
	assert.Equal(t, says(open(t, c, limit), "bond"), "jane, joe", "the rest does not matter")
	c.URLs = []string{"ldap://127.0.0.1:1", c.URLs[0]}
	assert.Equal(t, says(open(t, c, limit), "bond"), "jane, joe", "the second server")
}

func TestDirectoryDownAndUpAgain(t *testing.T) {
	s := newSlapd(t)
	d := open(t, s.settings(), limit)
	if got := says(d, "bond"); got != "jane, joe" {
		t.Fatalf("up: got %q", got)
	}
	s.stop()
	for _, key := range []string{"bond", "nobody"} {
		if got := says(d, key); !strings.HasPrefix(got, "error") {
			t.Errorf("down: %s: got %q, want an error", key, got)
		}
	}
	s.start()
	assert.Equal(t, says(d, "bond")+says(d, "nobody"), "jane, joenone", "up again")
	// Restarted between two questions: the idle connection's end is no failure.
	s.stop()
	s.start()
	assert.Equal(t, says(d, "nobody")+says(d, "bond"), "nonejane, joe", "restarted")
	// Stopped: it is connected to, and says nothing.
	s.halt()
	d.timeout = 200 * time.Millisecond
	if got := says(d, "bond"); !strings.HasPrefix(got, "error") {
		t.Errorf("hanging: got %q, want an error", got)
	}
	assert.Must(t, s.cmd.Process.Signal(syscall.SIGCONT))
	d.timeout = limit
	assert.Equal(t, says(d, "bond"), "jane, joe", "going on")
}

// Peer12: a user's password is checked by a bind as the entry that the filter finds.
func TestPeer12PasswordsAreCheckedByBind(t *testing.T) {
	s := newSlapd(t)
	c := settings.LDAP{URLs: []string{"ldap://" + s.addr}, BindDN: "cn=root,dc=example,dc=org", Password: password,
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
	s := newSlapd(t)
	p := assert.Get(peer.NewProxy("tcp", "127.0.0.1:0", s.addr))(t)
	t.Cleanup(p.Close)
	c := s.settings()
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
		s.stop()
		if err := bind(limit, word); err == nil || errors.Is(err, ErrRefused) {
			t.Errorf("%s, down: %v", word, err)
		}
		s.start()
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
