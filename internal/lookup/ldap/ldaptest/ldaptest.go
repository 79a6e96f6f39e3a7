// Package ldaptest starts Debian's slapd with a small directory. It is for tests; a test that finds no
// slapd is skipped.
//
// Nothing of it survives the test. Diagnostics: what cannot be done fails the test.
package ldaptest

import (
	"fmt"
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
)

const limit = time.Minute

// Password is that of the directory's manager, cn=root,dc=example,dc=org. The user bond has secret.
const Password = "pass word"

// Slapd is a real server with a directory of its own.
type Slapd struct {
	t    testing.TB
	dir  string
	Addr string // host:port
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

// Start makes a server and starts it; it ends with the test.
func Start(t testing.TB) *Slapd {
	t.Helper()
	if testing.Short() {
		t.Skip("starts slapd")
	}
	path, err := exec.LookPath("/usr/sbin/slapd")
	if err != nil {
		t.Skip("slapd is not installed: apt-get install slapd")
	}
	l := assert.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	s := &Slapd{t: t, dir: t.TempDir(), Addr: l.Addr().String()}
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
`, Password, s.dir)
	for name, text := range map[string]string{"slapd.conf": conf, "tree.ldif": tree} {
		assert.Must(t, os.WriteFile(filepath.Join(s.dir, name), []byte(text), 0o600))
	}
	assert.Must(t, os.Mkdir(filepath.Join(s.dir, "db"), 0o700))
	add := exec.Command(path, "-T", "add", "-f", s.dir+"/slapd.conf", "-l", s.dir+"/tree.ldif")
	if out, err := add.CombinedOutput(); err != nil {
		t.Skipf("this slapd cannot be used: %v\n%s", err, out)
	}
	s.Start()
	t.Cleanup(s.Stop)
	return s
}

// Start starts the server and waits until it can be connected to.
func (s *Slapd) Start() {
	s.t.Helper()
	s.cmd = exec.Command("/usr/sbin/slapd", "-d", "0", "-f", s.dir+"/slapd.conf", "-h", "ldap://"+s.Addr+"/")
	assert.Must(s.t, s.cmd.Start())
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.After(limit); ; {
		c, err := net.Dial("tcp", s.Addr)
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

// Halt stops the server's threads where they are, and waits until they stand.
func (s *Slapd) Halt() {
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

// Continue ends Halt.
func (s *Slapd) Continue() error { return s.cmd.Process.Signal(syscall.SIGCONT) }

// Stop kills the server, stopped or not.
func (s *Slapd) Stop() {
	if s.cmd != nil {
		_ = s.cmd.Process.Kill()
		_ = s.cmd.Wait()
	}
	s.cmd = nil
}

// Settings are those of a lookup of descriptions by name or mail address.
func (s *Slapd) Settings() settings.LDAP {
	return settings.LDAP{
		URLs: []string{"ldap://" + s.Addr}, BindDN: "cn=root,dc=example,dc=org", Password: Password, Base: "ou=people,dc=example,dc=org",
		Scope: "sub", Filter: "(&(objectClass=inetOrgPerson)(|(cn=%s)(mail=%s)))", Attributes: []string{"description"}, Limit: 10,
	}
}
