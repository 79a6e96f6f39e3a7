package mailbox

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"zmailer/internal/workspec"
)

// virtualTo returns a virtual mailbox's r line as the router writes it.
func virtualTo(s workspec.VirtualStore, uid int) workspec.Recipient {
	if s.Mailbox == "" {
		s.Mailbox = "alice@box.example"
	}
	return workspec.Recipient{Channel: workspec.Virtual, Host: s.Host(), Address: "alice@box.example", Privilege: strconv.Itoa(uid)}
}

const virtualHeader = "Subject: x\n\n"

// Op3: a virtual mailbox is made for its uid and gid, with its mode, also under a umask that
// would take bits.
func TestVirtualMailboxBelongsToItsOwner(t *testing.T) {
	defer unix.Umask(unix.Umask(0o077))
	p := asRoot(t, "$MAIL/%u")
	p.mailbox.c.Virtual = Virtual{Base: p.mail, MinimumUID: 100}
	const gid = 54322
	for _, c := range []struct {
		path             string
		mode             uint32
		files, directory os.FileMode
	}{
		{"a.example/plain/", 0, 0o600, 0o700},
		{"a.example/shared/", 0o660, 0o660, 0o770},
		{"b.example/mbox", 0o640, 0o640, 0},
	} {
		r := virtualTo(workspec.VirtualStore{GID: gid, Mode: c.mode, Quota: -1, Path: p.mail + "/" + c.path}, otherUID)
		for range 2 {
			p.one(p.do(p.queue("s@example.org", virtualHeader, "b\n", r)), "\tok3 ")
		}
		at := filepath.Join(p.mail, c.path)
		if !strings.HasSuffix(c.path, "/") {
			p.wantOwner(at, otherUID, c.files)
			continue
		}
		for _, sub := range []string{"", "tmp", "new", "cur"} {
			p.wantOwner(filepath.Join(at, sub), otherUID, c.directory)
		}
		names := p.names(filepath.Join(at, "new"))
		if len(names) != 2 {
			t.Errorf("%s: got %d messages, want 2", c.path, len(names))
		}
		for _, name := range names {
			p.wantOwner(filepath.Join(at, "new", name), otherUID, c.files)
			var st unix.Stat_t
			p.must(unix.Stat(filepath.Join(at, "new", name), &st))
			if st.Gid != gid {
				t.Errorf("%s: got gid %d, want %d", name, st.Gid, gid)
			}
		}
	}
}

// Op3: what code in the router could write into a specification reaches no file outside of
// VIRTUALMAILBOXBASE, and no uid below the minimum.
func TestVirtualMailboxOutsideOfItsLimitsIsNotWritten(t *testing.T) {
	p := newPost(t, "$MAIL/%u")
	base := filepath.Join(p.mail, "vmail")
	p.must(os.Mkdir(base, 0o755))
	p.mailbox.c.Virtual = Virtual{Base: base, MinimumUID: 1000}
	good := workspec.VirtualStore{GID: 5, Quota: -1, Path: base + "/a/"}
	change := func(do func(*workspec.VirtualStore)) workspec.VirtualStore {
		s := good
		do(&s)
		return s
	}
	for name, r := range map[string]workspec.Recipient{
		"root":             virtualTo(good, 0),
		"a system user":    virtualTo(good, 999),
		"nobody":           virtualTo(good, nobody),
		"group root":       virtualTo(change(func(s *workspec.VirtualStore) { s.GID = 0 }), 5000),
		"another place":    virtualTo(change(func(s *workspec.VirtualStore) { s.Path = p.mail + "/a/" }), 5000),
		"the base itself":  virtualTo(change(func(s *workspec.VirtualStore) { s.Path = base + "/" }), 5000),
		"beside the base":  virtualTo(change(func(s *workspec.VirtualStore) { s.Path = base + "2/a" }), 5000),
		"above the base":   virtualTo(change(func(s *workspec.VirtualStore) { s.Path = base + "/../a" }), 5000),
		"a path with dots": virtualTo(change(func(s *workspec.VirtualStore) { s.Path = base + "/a/./b" }), 5000),
		"setuid":           virtualTo(change(func(s *workspec.VirtualStore) { s.Mode = 0o4600 }), 5000),
		"for everybody":    virtualTo(change(func(s *workspec.VirtualStore) { s.Mode = 0o666 }), 5000),
		"no mailbox":       {Channel: workspec.Virtual, Host: "alice@box.example", Address: "alice@box.example", Privilege: "5000"},
	} {
		p.one(p.do(p.queue("s@example.org", virtualHeader, "b\n", r)), "\tdeferred 4.3.5 ")
		if got := append(p.names(base), p.names(p.mail)...); len(got) != 1 {
			t.Errorf("%s: got files %q, want none but vmail", name, got)
		}
	}
	p.mailbox.c.Virtual.Base = ""
	p.one(p.do(p.queue("s@example.org", virtualHeader, "b\n", virtualTo(good, 5000))), "\tdeferred 4.3.5 ")
}

// The user of one mailbox cannot have mail written with the rights of another: links and
// stores of others are refused as those of local users are.
func TestVirtualMailboxOfAnotherIsRefused(t *testing.T) {
	p := asRoot(t, "$MAIL/%u")
	p.mailbox.c.Virtual = Virtual{Base: p.mail, MinimumUID: 100}
	for name, set := range map[string]func(path string) error{
		"a Maildir of another":  func(s string) error { return os.Mkdir(s, 0o777) },
		"a link to another's":   func(s string) error { return os.Symlink(filepath.Join(p.mail, "victim"), s) },
		"an mbox with a link":   func(s string) error { return os.Link(filepath.Join(p.mail, "victim", "mbox"), s) },
		"a link to a root file": func(s string) error { return os.Symlink("/etc/passwd", s) },
	} {
		path := filepath.Join(p.mail, "victim")
		p.must(os.RemoveAll(path))
		p.must(os.Mkdir(path, 0o755))
		p.must(os.WriteFile(filepath.Join(path, "mbox"), []byte("victim's\n"), 0o666))
		at := filepath.Join(p.mail, "box")
		p.must(os.RemoveAll(at))
		p.must(set(at))
		store := at + "/"
		if strings.Contains(name, "mbox") || strings.Contains(name, "root file") {
			store = at
		}
		before := p.read(filepath.Join(path, "mbox"))
		p.one(p.do(p.queue("s@example.org", virtualHeader, "b\n", virtualTo(workspec.VirtualStore{GID: 7, Quota: -1, Path: store}, otherUID))), "\tdeferred 4.")
		if got := p.read(filepath.Join(path, "mbox")); got != before || len(p.names(path)) != 1 {
			t.Errorf("%s: the victim has %q and %q", name, p.names(path), got)
		}
	}
}

// Each mailbox has the quota of its entry, and MAILBOXQUOTA without one.
func TestVirtualMailboxHasItsOwnQuota(t *testing.T) {
	make := newPost
	if os.Geteuid() == 0 {
		make = asRoot
	}
	p := make(t, "$MAIL/%u")
	p.mailbox.c.Virtual = Virtual{Base: p.mail, MinimumUID: 1}
	p.mailbox.c.Quota = Quota{Bytes: 400, Fail: true}
	body := strings.Repeat("x", 300) + "\n"
	for path, c := range map[string]struct {
		quota int64
		want  []string
	}{
		"default/": {-1, []string{"ok3 ", "5.2.2"}},
		"none/":    {0, []string{"ok3 ", "ok3 "}},
		"more/":    {1 << 20, []string{"ok3 ", "ok3 "}},
		"less/":    {200, []string{"5.2.3"}},
		"mbox":     {700, []string{"ok3 ", "5.2.2"}},
	} {
		for _, want := range c.want {
			r := virtualTo(workspec.VirtualStore{GID: 7, Quota: c.quota, Path: p.mail + "/" + path}, max(os.Getuid(), 1000))
			p.one(p.do(p.queue("s@example.org", virtualHeader, body, r)), want)
		}
	}
}
