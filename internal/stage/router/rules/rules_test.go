package rules

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"zmailer/internal/mail/address"
	"zmailer/internal/run/assert"
	"zmailer/internal/run/config"
	"zmailer/internal/table/text"
)

// conf is a directory of tables and the rules over it.
type conf struct {
	*Rules
	t   testing.TB
	dir string
	now atomic.Int64 // UnixNano
	log bytes.Buffer

	owners bool // resolve has the owners of lists
}

// newConf writes the files, whose changes are an hour old, and reads them. Local
// users are those of the file users, if there is one.
func newConf(t testing.TB, files map[string]string) *conf {
	t.Helper()
	if os.Geteuid() == Nobody {
		t.Skip("run as the user nobody, whose files are ours")
	}
	c := &conf{t: t, dir: t.TempDir()}
	c.now.Store(time.Now().UnixNano())
	for name, text := range files {
		c.write(name, text)
	}
	r := assert.Get(New(c.config()))(t)
	c.Rules = r
	return c
}

func (c *conf) config() Config {
	k := Config{
		Dir: c.dir, Hostname: "mx.example.org", LocalUsers: filepath.Join(c.dir, "users"),
		Now: func() time.Time { return time.Unix(0, c.now.Load()) },
		Log: slog.New(slog.NewTextHandler(&c.log, nil)),
	}
	if _, err := os.Stat(k.LocalUsers); err != nil {
		k.LocalUsers = "passwd"
	}
	k.Classes = Classes{Base: "/var/vmail", MinimumUID: 100, Verify: true, VerifyRelay: true}
	k.Sources = map[text.Kind][]string{}
	for _, kind := range text.ClassKinds() {
		if _, err := os.Stat(filepath.Join(c.dir, string(kind))); err == nil {
			k.Sources[kind] = []string{string(kind)}
		}
	}
	return k
}

// write writes a file whose change is an hour old; @DIR is our directory.
func (c *conf) write(name, text string) {
	c.t.Helper()
	path := filepath.Join(c.dir, name)
	assert.Must(c.t, os.MkdirAll(filepath.Dir(path), 0o755))
	assert.Must(c.t, os.WriteFile(path, []byte(strings.ReplaceAll(text, "@DIR", c.dir)), 0o644))
	c.touch(name, -time.Hour)
}

// touch sets a file's mtime relative to the clock.
func (c *conf) touch(name string, age time.Duration) {
	c.t.Helper()
	at := time.Unix(0, c.now.Load()).Add(age)
	assert.Must(c.t, os.Chtimes(filepath.Join(c.dir, name), at, at))
}

func (c *conf) advance(d time.Duration) { c.now.Add(int64(d)) }

// collect returns the targets of an address.
func collect(k *Tables, m address.Mailbox, report bool) ([]Target, error) {
	var list []Target
	err := k.Resolve(context.Background(), Query{Recipient: m, Report: report}, func(t Target) error {
		list = append(list, t)
		return nil
	})
	return list, err
}

// resolve returns the targets of an address as text; UID stands for our own uid, and
// paths are those below our directory.
func (c *conf) resolve(rcpt string, report bool) []string {
	c.t.Helper()
	m := assert.Get(address.Parse(rcpt))(c.t)
	list, err := collect(c.Tables(), m, report)
	if err != nil {
		return []string{"trouble: " + err.Error()}
	}
	var out []string
	for _, k := range list {
		uid := fmt.Sprint(k.Privilege)
		if k.Privilege == uint32(os.Geteuid()) {
			uid = "UID"
		}
		host := strings.TrimSuffix(k.Host, fmt.Sprint(".", os.Geteuid()))
		word, coded, more := strings.Cut(host, ":")
		if more && k.Channel == Error {
			text := assert.Get(address.DecodeXText(coded))(c.t)
			host = word + ": " + strings.ReplaceAll(strings.ReplaceAll(text, c.dir+"/", ""), c.dir, "DIR") + ":"
		}
		s := k.Channel + " " + host + " " + k.User + " " + uid
		if c.owners && k.Owner != "" {
			s += " <- " + k.Owner
		}
		if c.owners && k.VERP {
			s += "*"
		}
		out = append(out, s)
	}
	return out
}

func TestMissingTablesAreEmpty(t *testing.T) {
	c := newConf(t, nil)
	tests := map[string]struct{ rcpt, want string }{
		"domain":                   {"x@Example.COM", "smtp example.com x@Example.COM 65534"},
		"IPv4 literal, no MX":      {"x@[192.0.2.1]", "smtp [192.0.2.1] x@[192.0.2.1] 65534"},
		"IPv6 literal, no MX":      {"x@[IPv6:2001:db8::1]", "smtp [2001:db8::1] x@[IPv6:2001:db8::1] 65534"},
		"this host":                {"no-such-user@mx.example.org", "error nouser no-such-user@mx.example.org 65534"},
		"null address":             {"<>", "error badaddress  65534"},
		"the system's user":        {"root", fmt.Sprintf("local root@mx.example.org root@mx.example.org %s", uidWord(0))},
		"postmaster without alias": {"postmaster", fmt.Sprintf("local root@mx.example.org root@mx.example.org %s", uidWord(0))},
	}
	for name, tt := range tests {
		assert.Equal(t, strings.Join(c.resolve(tt.rcpt, false), ", "), tt.want, name)
	}
}

func uidWord(uid int) string {
	if uid == os.Geteuid() {
		return "UID"
	}
	return fmt.Sprint(uid)
}

func TestPostmasterIsAlwaysDelivered(t *testing.T) {
	root := "local root@mx.example.org root@mx.example.org " + uidWord(0)
	tests := map[string]struct{ aliases, setting, want string }{
		"setting is a user":                 {"", "carol", "local carol@mx.example.org carol@mx.example.org UID"},
		"setting is an address":             {"", "hostmaster@example.com", "smtp example.com hostmaster@example.com 65534"},
		"setting is an alias":               {"team: carol", "team", "local carol@mx.example.org carol@mx.example.org UID"},
		"setting leads nowhere, root alias": {"root: carol", "nobody-here", "local carol@mx.example.org carol@mx.example.org UID"},
		"all lead nowhere":                  {"root: nobody-here", "nobody-here", root},
		"setting is root, which is no user": {"", "root", root},
		"all lead to each other":            {"root: postmaster", "postmaster", root},
		"setting leads back to postmaster":  {"team: postmaster", "team", root},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			c := newConf(t, map[string]string{"users": "carol\n", "aliases": tt.aliases + "\n"})
			k := c.config()
			k.Postmaster = tt.setting
			r := assert.Get(New(k))(t)
			c.Rules = r
			assert.Equal(t, strings.Join(c.resolve("postmaster@mx.example.org", false), ", "), tt.want)
		})
	}
}

func TestDeepAliasesEndAsALoop(t *testing.T) {
	var deep, wide strings.Builder
	for i := range MaxDepth + 1 {
		fmt.Fprintf(&deep, "a%d: a%d\n", i, i+1)
		// Each level names the next one twice: 2^65 ways, one result.
		fmt.Fprintf(&wide, "b%d: b%d, \"b%d\"\n", i, i+1, i+1)
	}
	c := newConf(t, map[string]string{"users": "a65\nb60\n", "aliases": deep.String() + wide.String()})
	if got, want := c.resolve("a0", false), []string{"error loop: more than 64 steps: a0 (aliases:1) -> a1 (aliases:2) -> a2 (aliases:3) -> a3 (aliases:4) -> a4 (aliases:5) -> a5 (aliases:6) -> " +
		"a6 (aliases:7) -> a7 (aliases:8) -> (52 more) -> a60 (aliases:61) -> a61 (aliases:62) -> a62 (aliases:63) -> a63 (aliases:64) -> a64: a0 65534"}; !cmp.Equal(got, want) {
		t.Errorf("65 levels: got %q, want %q", got, want)
	}
	if got, want := c.resolve("a1", false), []string{"local a65@mx.example.org a65@mx.example.org UID"}; !cmp.Equal(got, want) {
		t.Errorf("64 levels: got %q, want %q", got, want)
	}
	if got, want := c.resolve("b10", false), []string{"error nouser b65@mx.example.org 65534", "error nouser b65@mx.example.org 65534"}; !cmp.Equal(got, want) {
		t.Errorf("wide: got %q, want %q", got, want)
	}
}

// Each of two tags at each of 30 levels would make a thousand million addresses.
func TestTagsThatDoubleAtEachLevelHaveAnEnd(t *testing.T) {
	var aliases strings.Builder
	for i := range 30 {
		fmt.Fprintf(&aliases, "a%d@v.example: a%d+x@v.example, a%d+y@v.example\n", i, i+1, i+1)
	}
	c := newConf(t, map[string]string{"fqdnaliases": aliases.String()})
	c.Rules = withTags(t, c)
	got := c.resolve("a0@v.example", false)
	if len(got) > 2*maxRetagged || !slices.ContainsFunc(got, func(s string) bool { return strings.HasPrefix(s, "error loop") }) {
		t.Errorf("got %d targets, the first %.200q, want an error and at most %d", len(got), got, 2*maxRetagged)
	}
}

// What a report says has an end.
func TestChainOfLongNamesIsCut(t *testing.T) {
	var aliases strings.Builder
	const n = 12
	for i := range n {
		fmt.Fprintf(&aliases, "\"%d%s\": \"%d%s\"\n", i, strings.Repeat("ö", 200), (i+1)%n, strings.Repeat("ö", 200))
	}
	c := newConf(t, map[string]string{"users": "carol\n", "aliases": aliases.String()})
	got := c.resolve("0"+strings.Repeat("ö", 200), false)
	if len(got) != 1 || len(got[0]) > maxText+1000 || !strings.Contains(got[0], " ... ") || !utf8.ValidString(got[0]) {
		t.Errorf("got %d bytes: %q", len(got[0]), got)
	}
}

func TestViaNamesTheAliasesOnTheWay(t *testing.T) {
	c := newConf(t, map[string]string{"users": "carol\n", "aliases": "sales: team\nteam: carol\n", "fqdnaliases": "@old.example: %1@mx.example.org\n"})
	list, err := collect(c.Tables(), address.Mailbox{Local: "sales", Domain: "old.example"}, false)
	if err != nil || len(list) != 1 {
		t.Fatalf("got %v, %v", list, err)
	}
	if diff := cmp.Diff(list[0].Via, []string{"sales@old.example", "sales@mx.example.org", "team"}); diff != "" {
		t.Error(diff)
	}
}

func TestListIsReadWhenItIsUsed(t *testing.T) {
	c := newConf(t, map[string]string{"users": "carol\ndave\n"})
	list := filepath.Join(c.dir, "members")
	c.write("aliases", "list: \":include:"+list+"\"\n")
	c.advance(period)
	if got := c.resolve("list", false); len(got) != 1 || !strings.HasPrefix(got[0], "trouble: :include:"+list) {
		t.Fatalf("no list: got %q, want trouble", got)
	}
	c.write("members", "# members\ncarol\n\nEve <eve@example.com>, dave\n")
	c.advance(period)
	want := []string{"local carol@mx.example.org carol@mx.example.org UID", "smtp example.com eve@example.com 65534", "local dave@mx.example.org dave@mx.example.org UID"}
	if got := c.resolve("list", false); !cmp.Equal(got, want) {
		t.Errorf("list: got %q, want %q", got, want)
	}
	c.write("members", "carol\n")
	c.advance(period)
	if got := c.resolve("list", false); !cmp.Equal(got, want[:1]) {
		t.Errorf("changed list: got %q, want %q", got, want[:1])
	}
	c.write("members", "")
	c.advance(period)
	if got, want := c.resolve("list", false), []string{"bitbucket - list 65534"}; !cmp.Equal(got, want) {
		t.Errorf("list without members: got %q, want %q", got, want)
	}
	c.write("members", "carol\n<>\n")
	c.advance(period)
	if got := c.resolve("list", false); len(got) != 1 || !strings.Contains(got[0], "members:2: bad line of a list") {
		t.Errorf("bad line: got %q, want trouble with file and line", got)
	}
	c.write("members", ":include:"+list+"\n/srv/list\n")
	c.advance(period)
	if got, want := c.resolve("list", false), []string{"error loop: list (aliases:1) -> :include:members (members:1) -> :include:members: list 65534", "file file /srv/list UID"}; !cmp.Equal(got, want) {
		t.Errorf("list that includes itself: got %q, want %q", got, want)
	}
}

// M48
func TestValuesOfAFileThatOthersMayWriteActAsNobody(t *testing.T) {
	c := newConf(t, map[string]string{"users": "carol\n"})
	list := filepath.Join(c.dir, "members")
	c.write("members", "|/bin/prog\n")
	c.write("aliases", "list: :include:"+list+", /srv/list\n")
	c.advance(period)
	for _, tt := range []struct {
		name, file string
		mode       os.FileMode
		want       []string
	}{
		{"only the owner", "members", 0o644, []string{"pipe pipe |/bin/prog UID", "file file /srv/list UID"}},
		{"group writes the list", "members", 0o664, []string{"error unsafe: |/bin/prog in members:1: members may be written by its group: list 65534", "file file /srv/list UID"}},
		{"all write the aliases", "aliases", 0o646, []string{"error unsafe: |/bin/prog in members:1: aliases may be written by everybody: list 65534",
			"error unsafe: /srv/list in aliases:1: aliases may be written by everybody: list 65534"}},
		{"again only the owner's", "members", 0o644, []string{"error unsafe: |/bin/prog in members:1: aliases may be written by everybody: list 65534",
			"error unsafe: /srv/list in aliases:1: aliases may be written by everybody: list 65534"}},
		{"aliases as well", "aliases", 0o644, []string{"pipe pipe |/bin/prog UID", "file file /srv/list UID"}},
		{"all write the directory", ".", 0o777, []string{"error unsafe: |/bin/prog in members:1: the directory DIR may be written by everybody: list 65534",
			"error unsafe: /srv/list in aliases:1: the directory DIR may be written by everybody: list 65534"}},
	} {
		assert.Must(t, os.Chmod(filepath.Join(c.dir, tt.file), tt.mode))
		c.advance(period)
		if got := c.resolve("list", false); !cmp.Equal(got, tt.want) {
			t.Errorf("%s: got %q, want %q", tt.name, got, tt.want)
		}
	}
}

// unreachable is a user database that does not answer.
type unreachable struct{}

func (unreachable) Lookup(string) (User, bool, error) {
	return User{}, false, errors.New("no answer")
}

func (unreachable) LookupUID(uint32) (User, bool, error) {
	return User{}, false, errors.New("no answer")
}

func TestLookupThatFailsIsTroubleNotAnUnknownUser(t *testing.T) {
	c := newConf(t, nil)
	k := c.config()
	k.Passwd = unreachable{}
	r, err := New(k)
	assert.Must(t, err)
	_, err = collect(r.Tables(), address.Mailbox{Local: "carol"}, false)
	if trouble, ok := IsTrouble(err); !ok || trouble.Why != "users" {
		t.Errorf("got %v, want trouble with users", err)
	}
	if _, err := collect(r.Tables(), address.Mailbox{Local: "x", Domain: "example.com"}, false); err != nil {
		t.Errorf("a remote address needs no users: got %v", err)
	}
}

func TestBuiltInTablesAreUsedWithoutADirectory(t *testing.T) {
	r := assert.Get(New(Config{Hostname: "mx.example.org"}))(t)
	if ok, err := r.Tables().IsLocal(t.Context(), address.Mailbox{Local: "x", Domain: "LocalHost"}); !ok || err != nil {
		t.Error("localhost: got remote, want local as the built-in localnames say")
	}
	list, err := collect(r.Tables(), address.Mailbox{Local: "x", Domain: "example.com"}, false)
	if err != nil || len(list) != 1 || list[0].Channel != SMTP || list[0].Host != "example.com" {
		t.Errorf("got %+v, %v", list, err)
	}
}

func TestUnusableSettingIsAConfigurationError(t *testing.T) {
	dir := t.TempDir()
	tests := map[string]Config{
		"host name":         {Dir: dir, Hostname: "not a domain"},
		"no host name":      {Dir: dir},
		"postmaster":        {Dir: dir, Hostname: "x.example", Postmaster: "a b"},
		"file of users":     {Dir: dir, Hostname: "x.example", LocalUsers: filepath.Join(dir, "missing")},
		"directory instead": {Dir: dir, Hostname: "x.example", LocalUsers: dir},
	}
	for name, c := range tests {
		if _, err := New(c); config.Exit(err) != config.ExitConfig {
			t.Errorf("%s: got %v, want a configuration error", name, err)
		}
	}
}

func mustParse(t *testing.T, s string) address.Mailbox {
	t.Helper()
	m := assert.Get(address.Parse(s))(t)
	return m
}
