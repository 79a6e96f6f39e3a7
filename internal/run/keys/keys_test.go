package keys

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"zmailer/internal/run/assert"
	"zmailer/internal/run/config"
	"zmailer/internal/run/helper"
	"zmailer/internal/run/helper/helpertest"
)

// etc is a directory of root's with a zmailer.conf; only root can make one.
type etc struct {
	t   *testing.T
	dir string
}

func newEtc(t *testing.T, conf string) *etc {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("skipped: files that are root's alone need root")
	}
	e := &etc{t, t.TempDir()}
	// A temporary directory may belong to this test's caller in a way that others can write.
	if _, err := walk(e.dir + "/."); err != nil && !strings.Contains(err.Error(), "regular") {
		t.Skipf("skipped: %v", err)
	}
	e.write("zmailer.conf", conf, 0o644)
	return e
}

func (e *etc) path(name string) string { return filepath.Join(e.dir, name) }

func (e *etc) write(name, text string, mode fs.FileMode) {
	e.t.Helper()
	assert.Must(e.t, os.MkdirAll(filepath.Dir(e.path(name)), 0o755), os.WriteFile(e.path(name), []byte(text), mode), os.Chmod(e.path(name), mode))
}

// serve returns a client of these programs' helper.
func (e *etc) serve(programs ...string) *Client {
	e.t.Helper()
	daemon, opener := helpertest.Pair(e.t)
	served := make(chan error, 1)
	go func() { served <- Serve(opener, NewPolicy(e.path("zmailer.conf"), programs...)) }()
	e.t.Cleanup(func() {
		daemon.Close()
		if err := <-served; err != nil && !errors.Is(err, net.ErrClosed) {
			e.t.Errorf("Serve: %v", err)
		}
	})
	return NewClient(daemon)
}

// content is what a client gets.
func content(c *Client, path string) (string, error) {
	f, err := c.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	b, err := io.ReadAll(f)
	if _, werr := f.Write([]byte("x")); werr == nil {
		return "", errors.New("the descriptor can be written to")
	}
	return string(b), err
}

// Op2: keys that root alone can read are handed over as zmailer.conf names them.
func TestOp2NamedKeysOfRootAreHandedOver(t *testing.T) {
	e := newEtc(t, "TLSCERT=le/live/mx/full.pem other.pem\nTLSKEY=le/live/mx/key.pem other.key\nAUTH=\"pam:smtp file:passwd\"\n")
	for _, name := range []string{"le/archive/mx/full1.pem", "le/archive/mx/key1.pem", "other.pem", "other.key", "passwd", "credentials", "keys/dkim.pem", "unnamed"} {
		e.write(name, name, 0o600)
	}
	e.write("dkim", "# example.net s unnamed\nexample.org s keys/dkim.pem\n", 0o644)
	assert.Must(t, os.MkdirAll(e.path("le/live/mx"), 0o755), os.Chmod(e.path("le/archive"), 0o700),
		os.Symlink("../../archive/mx/full1.pem", e.path("le/live/mx/full.pem")), os.Symlink(e.path("le/archive/mx/key1.pem"), e.path("le/live/mx/key.pem")))
	smtpserver, agent := e.serve("smtpserver"), e.serve("ta-smtp")
	for name, want := range map[string]string{"le/live/mx/full.pem": "le/archive/mx/full1.pem", "le/live/mx/key.pem": "le/archive/mx/key1.pem",
		"other.key": "other.key", "passwd": "passwd", "credentials": "credentials"} {
		if got, err := content(smtpserver, e.path(name)); got != want || err != nil {
			t.Errorf("smtpserver, %s: %q, %v", name, got, err)
		}
	}
	if got, err := content(agent, e.path("keys/dkim.pem")); got != "keys/dkim.pem" || err != nil {
		t.Errorf("ta-smtp: %q, %v", got, err)
	}
	for _, c := range []struct {
		client *Client
		path   string
	}{{smtpserver, e.path("keys/dkim.pem")}, {agent, e.path("other.key")}, {smtpserver, e.path("unnamed")}, {agent, e.path("unnamed")},
		{smtpserver, "/etc/shadow"}, {smtpserver, e.path("le/archive/mx/key1.pem")}, {smtpserver, e.dir + "/le/../other.key"},
		{smtpserver, "other.key"}, {smtpserver, ""}, {smtpserver, e.path("other.key\x00")}, {smtpserver, strings.Repeat("/x", 3000)}} {
		if _, err := c.client.Open(c.path); err == nil || errors.Is(err, ErrGone) {
			t.Errorf("%.40q: %v", c.path, err)
		}
	}
	// A reload: what zmailer.conf names now.
	e.write("zmailer.conf", "TLSCERT=unnamed\n", 0o644)
	if got, err := content(smtpserver, e.path("unnamed")); got != "unnamed" || err != nil {
		t.Errorf("after a change: %q, %v", got, err)
	}
	if _, err := smtpserver.Open(e.path("other.key")); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("a key that is named no more: %v", err)
	}
	if _, err := smtpserver.Open(e.path("credentials")); err != nil {
		t.Error(err)
	}
	assert.Must(t, os.Remove(e.path("unnamed")))
	if _, err := smtpserver.Open(e.path("unnamed")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("one that is not there: %v", err)
	}
}

// Op2: whatever others than root can have put where a key is named is not opened, nor is
// anything waited for.
func TestOp2WhatOthersCanMakeIsNotHandedOver(t *testing.T) {
	const daemon = 4711
	for name, spoil := range map[string]func(e *etc, key string) error{
		"owned by the daemon":          func(_ *etc, key string) error { return os.Chown(key, daemon, -1) },
		"writable by its group":        func(_ *etc, key string) error { return errors.Join(os.Chown(key, 0, daemon), os.Chmod(key, 0o660)) },
		"writable by everyone":         func(_ *etc, key string) error { return os.Chmod(key, 0o602) },
		"in a directory of the daemon": func(e *etc, _ string) error { return os.Chown(e.path("tls"), daemon, -1) },
		"in a directory of a group": func(e *etc, _ string) error {
			return errors.Join(os.Chown(e.path("tls"), 0, daemon), os.Chmod(e.path("tls"), 0o770))
		},
		"below a directory of the daemon": func(e *etc, _ string) error { return os.Chown(e.dir, daemon, -1) },
		"in a directory like /tmp":        func(e *etc, _ string) error { return os.Chmod(e.path("tls"), fs.ModeSticky|0o777) },
		"a link by the daemon": func(e *etc, key string) error {
			return errors.Join(os.Rename(key, key+"1"), os.Symlink(key+"1", key), os.Lchown(key, daemon, -1))
		},
		"a link to a file of the daemon": func(e *etc, key string) error {
			return errors.Join(os.Rename(key, key+"1"), os.Symlink(key+"1", key), os.Chown(key+"1", daemon, -1))
		},
		"a link into a directory of the daemon": func(e *etc, key string) error {
			dir := e.path("theirs")
			return errors.Join(os.Mkdir(dir, 0o755), os.Rename(key, dir+"/key"), os.Symlink("../theirs/key", key), os.Chown(dir, daemon, -1))
		},
		"a link that goes round": func(_ *etc, key string) error { return errors.Join(os.Remove(key), os.Symlink(key, key)) },
		"a fifo":                 func(_ *etc, key string) error { return errors.Join(os.Remove(key), unix.Mkfifo(key, 0o600)) },
		"a device": func(_ *etc, key string) error {
			err := unix.Mknod(key+"d", unix.S_IFCHR|0o600, int(unix.Mkdev(1, 5)))
			if errors.Is(err, syscall.EPERM) {
				err = os.Symlink("/dev/zero", key+"d")
			}
			return errors.Join(err, os.Remove(key), os.Rename(key+"d", key))
		},
		"a directory":                func(_ *etc, key string) error { return errors.Join(os.Remove(key), os.Mkdir(key, 0o700)) },
		"zmailer.conf of the daemon": func(e *etc, _ string) error { return os.Chown(e.path("zmailer.conf"), daemon, -1) },
		"zmailer.conf of everyone":   func(e *etc, _ string) error { return os.Chmod(e.path("zmailer.conf"), 0o666) },
	} {
		t.Run(name, func(t *testing.T) {
			e := newEtc(t, "TLSCERT=tls/key\n")
			e.write("tls/key", "secret", 0o600)
			c := e.serve("smtpserver")
			if _, err := c.Open(e.path("tls/key")); err != nil {
				t.Fatal(err)
			}
			assert.Must(t, spoil(e, e.path("tls/key")))
			f, err := c.Open(e.path("tls/key"))
			if f != nil || !errors.Is(err, fs.ErrPermission) && !errors.Is(err, syscall.ELOOP) {
				t.Errorf("got %v, %v", f, err)
			}
		})
	}
	t.Run("dkim of the daemon", func(t *testing.T) {
		e := newEtc(t, "")
		e.write("key", "secret", 0o600)
		e.write("dkim", "example.org s key\n", 0o644)
		c := e.serve("ta-smtp")
		if _, err := c.Open(e.path("key")); err != nil {
			t.Fatal(err)
		}
		assert.Must(t, os.Chown(e.path("dkim"), daemon, -1))
		if f, err := c.Open(e.path("key")); f != nil || !errors.Is(err, fs.ErrPermission) {
			t.Errorf("got %v, %v", f, err)
		}
	})
}

// A daemon hands connections on; who has one of those cannot.
func TestPassedConnectionsOpenTheSameFilesAndNoMore(t *testing.T) {
	e := newEtc(t, "TLSCERT=key\n")
	e.write("key", "secret", 0o600)
	c := e.serve("smtpserver")
	f := assert.Get(c.Hand(""))(t)
	t.Setenv(Variable, fmt.Sprint(assert.Get(unix.Dup(int(f.Fd())))(t)))
	f.Close()
	passed := FromEnvironment()
	if got, err := content(passed, e.path("key")); got != "secret" || err != nil {
		t.Fatalf("got %q, %v", got, err)
	}
	if f, err := passed.Hand(""); f != nil || !errors.Is(err, syscall.EPERM) {
		t.Errorf("handed on: %v, %v", f, err)
	}
	if _, err := passed.Open("/etc/shadow"); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("/etc/shadow: %v", err)
	}
	passed.conn.Close()
	if got, err := content(c, e.path("key")); got != "secret" || err != nil {
		t.Errorf("the daemon's own: %q, %v", got, err)
	}
	if os.Getenv(Variable) != "" {
		t.Error("programs that this one starts see the variable")
	}
}

// The end of the helper is no answer about a file; one that hangs is not waited for without end, and its late
// answer is not taken for another's.
func TestHelperThatEndsOrHangsOpensNothing(t *testing.T) {
	daemon, opener := helpertest.Pair(t)
	c := NewClient(daemon)
	c.patience = 50 * time.Millisecond
	if _, err := c.Open("/key"); !errors.Is(err, errSilent) {
		t.Fatalf("a helper that hangs: %v", err)
	}
	c.patience = time.Minute
	asked := make(chan error, 1)
	go func() {
		_, err := c.Open("/other")
		asked <- err
	}()
	var r request
	for range 2 {
		assert.Get(helper.Receive(opener, maxMessage, &r))(t)
	}
	// The answer to the first comes now, with a file, and then the one to the second.
	f := assert.Get(os.Open("/dev/null"))(t)
	defer f.Close()
	_, _, err := opener.WriteMsgUnix([]byte(`{"n":1}`), unix.UnixRights(int(f.Fd())), nil)
	assert.Must(t, err)
	_, err = opener.Write([]byte(`{"n":2,"errno":2}`))
	assert.Must(t, err)
	if err := <-asked; !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the second: %v", err)
	}
	opener.Close()
	for range 2 {
		if _, err := c.Open("/key"); !errors.Is(err, ErrGone) {
			t.Errorf("a helper that has ended: %v", err)
		}
	}
	var none *Client
	if _, err := none.Open("/key"); !errors.Is(err, config.ErrNotHanded) {
		t.Errorf("no helper: %v", err)
	}
}

// lowPort returns an address with a free port that only root may open.
func lowPort(t *testing.T) string {
	t.Helper()
	for port := 1023; port > 600; port-- {
		addr := fmt.Sprintf("127.0.0.1:%d", port)
		if l, err := net.Listen("tcp", addr); err == nil {
			assert.Must(t, l.Close())
			return addr
		}
	}
	t.Skip("skipped: no free port below 1024")
	return ""
}

// Op11: addresses are opened for smtpserver as zmailer.conf of root names them now: no other address,
// for no other program, for no process that smtpserver has started, and for no path.
func TestOp11NamedAddressesAreOpenedAndNoOthers(t *testing.T) {
	e := newEtc(t, "")
	addr := lowPort(t)
	_, port, _ := net.SplitHostPort(addr)
	e.write("zmailer.conf", "SMTPLISTEN="+addr+"\nLMTPLISTEN="+e.path("lmtp")+"\nWEBLISTEN=127.0.0.1:2580\n", 0o644)
	server, agent := e.serve("smtpserver"), e.serve("ta-smtp")
	l := assert.Get(server.Listen(addr, false))(t)
	c := assert.Get(net.Dial("tcp", addr))(t)
	assert.Must(t, assert.Get(l.Accept())(t).Close(), c.Close())
	if _, err := server.Listen(addr, false); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("one that is in use: %v", err)
	}
	assert.Must(t, l.Close())
	f := assert.Get(server.Hand(""))(t)
	t.Setenv(Variable, fmt.Sprint(assert.Get(unix.Dup(int(f.Fd())))(t)))
	f.Close()
	refused := func(what string, c *Client, addr string) {
		t.Helper()
		if l, err := c.Listen(addr, true); !errors.Is(err, fs.ErrPermission) {
			t.Errorf("%s: %v, %v", what, l, err)
		}
	}
	refused("a program that smtpserver has started", FromEnvironment(), addr)
	refused("another program", agent, addr)
	for _, other := range []string{"127.0.0.2:" + port, ":" + port, "localhost:" + port, "127.0.0.1:2580", e.path("lmtp"), "127.0.0.1", addr + " ", strings.Repeat("1", 200)} {
		refused(other, server, other)
	}
	if f, err := server.Open(addr); f != nil || !errors.Is(err, fs.ErrPermission) {
		t.Errorf("an address as a file: %v, %v", f, err)
	}
	e.write("zmailer.conf", "SMTPLISTEN=:"+port+"\n", 0o644)
	refused("an address that is named no more", server, addr)
	assert.Must(t, assert.Get(server.Listen(":"+port, false))(t).Close())
	assert.Must(t, os.Chown(e.path("zmailer.conf"), 4711, -1))
	refused("a zmailer.conf of the daemon", server, ":"+port)
	var none *Client
	refused("no helper", none, addr)
}

// passedFor returns a connection for a file, as a program inherits it that a client has started.
func passedFor(t *testing.T, c *Client, file string) *Client {
	t.Helper()
	f := assert.Get(c.Hand(file))(t)
	defer f.Close()
	t.Setenv(Variable, fmt.Sprint(assert.Get(unix.Dup(int(f.Fd())))(t)))
	return FromEnvironment()
}

// Op2: the secrets of SRS, and the passwords of tables on servers, are handed over as zmailer.conf,
// access and router.star of root name them: the file of settings, and the files of passwords that it names
// if root alone can write it.
func TestOp2PasswordsOfTablesAreHandedOver(t *testing.T) {
	e := newEtc(t, "SRSSECRETS=srs\nALIASES=\"aliases mysql:maps/users.cf 'pipemap:{ldap:dir.cf,http:"+"web.cf}'\"\nAUTH=\"oauth2:tokens.cf file:passwd\"\nROUTES=pgsql:theirs.cf\n")
	for file, text := range map[string]string{
		"srs": "secret", "maps/users.cf": "hosts = db\npassword_file = db.pw\nquery = x\n", "maps/db.pw": "pw", "dir.cf": "password_file=" + e.path("dir.pw") + "\n", "dir.pw": "pw",
		"web.cf": "# authorization_file = other.pw\nauthorization_file = web.pw\n", "web.pw": "pw", "tokens.cf": "client_secret_file = tokens.pw\n", "tokens.pw": "pw",
		"rules.cf": "password = pw\n", "policy.cf": "password = pw\n", "theirs.cf": "password_file = theirs.pw\n", "theirs.pw": "pw", "other.pw": "pw", "passwd": "x",
	} {
		e.write(file, text, 0o600)
	}
	e.write("access", "all check_client_access redis:rules.cf\n", 0o644)
	e.write("router.star", "users = table(\"redis:policy.cf\")\n", 0o644)
	assert.Must(t, os.Chown(e.path("theirs.cf"), 4711, -1))
	router, server, agent := e.serve("router"), e.serve("smtpserver"), e.serve("ta-smtp")
	opens := func(c *Client, name string) bool {
		_, err := content(c, e.path(name))
		if err != nil && !errors.Is(err, fs.ErrPermission) {
			t.Errorf("%s: %v", name, err)
		}
		return err == nil
	}
	for _, name := range []string{"srs", "maps/users.cf", "maps/db.pw", "dir.cf", "dir.pw", "web.cf", "web.pw", "tokens.cf", "tokens.pw", "policy.cf"} {
		if !opens(router, name) || !opens(server, name) || opens(agent, name) {
			t.Errorf("%s: router %v, smtpserver %v, ta-smtp %v", name, opens(router, name), opens(server, name), opens(agent, name))
		}
	}
	if !opens(server, "rules.cf") || opens(router, "rules.cf") {
		t.Error("a table of the file access is smtpserver's")
	}
	for _, name := range []string{"other.pw", "theirs.cf", "theirs.pw", "users.cf"} {
		if opens(router, name) || opens(server, name) {
			t.Errorf("%s was opened", name)
		}
	}

	// The program lookup gets a connection for its file, also from router --verify.
	verifier := passedFor(t, server, "")
	for who, c := range map[string]*Client{"the router's": passedFor(t, router, e.path("maps/users.cf")), "the verifier's": passedFor(t, verifier, e.path("maps/users.cf"))} {
		if !opens(c, "maps/users.cf") || !opens(c, "maps/db.pw") {
			t.Errorf("%s lookup cannot read its settings", who)
		}
		for _, name := range []string{"srs", "dir.cf", "dir.pw", "passwd", "zmailer.conf"} {
			if opens(c, name) {
				t.Errorf("%s lookup opened %s", who, name)
			}
		}
		for _, only := range []string{"", e.path("maps/users.cf"), e.path("srs")} {
			if f, err := c.Hand(only); f != nil || !errors.Is(err, syscall.EPERM) {
				t.Errorf("%s lookup hands on %q: %v, %v", who, only, f, err)
			}
		}
	}
	if opens(passedFor(t, router, e.path("unnamed")), "srs") {
		t.Error("a connection for a file that is not named opened another one")
	}

	// Programs that one program has started take only a part of the places.
	var held []*os.File
	t.Cleanup(func() { closeAll(held) })
	for {
		f, err := verifier.Hand(e.path("srs"))
		if err != nil {
			assert.Equal(t, errors.Is(err, syscall.EAGAIN), true, "%v", err)
			break
		}
		if held = append(held, f); len(held) > mostHanded {
			t.Fatalf("%d connections", len(held))
		}
	}
	if f, err := server.Hand(""); err != nil {
		t.Errorf("the daemon has no place: %v", err)
	} else {
		f.Close()
	}
	// A reload that no longer names a table.
	e.write("zmailer.conf", "SRSSECRETS=srs\n", 0o644)
	if opens(router, "maps/db.pw") || !opens(router, "srs") {
		t.Error("the files are not those that zmailer.conf names now")
	}
}
