package rules

import (
	"net"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"zmailer/internal/mail/address"
	"zmailer/internal/run/assert"
	"zmailer/internal/run/config"
	"zmailer/internal/table"
	"zmailer/internal/table/text"
	"zmailer/internal/wire/socketmap"
)

// mapServer is a socketmap server: values by "MAP KEY", or a whole answer behind a !.
type mapServer struct {
	path  string
	asked atomic.Int64
}

func newMapServer(t *testing.T, values map[string]string) *mapServer {
	t.Helper()
	s := &mapServer{path: filepath.Join(t.TempDir(), "sock")}
	l, err := net.Listen("unix", s.path)
	assert.Must(t, err)
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_ = socketmap.Serve(c, c, func(name, key string) socketmap.Reply {
					s.asked.Add(1)
					v, ok := values[name+" "+key]
					if !ok {
						return socketmap.Reply{Status: socketmap.NotFound}
					}
					if word, ok := strings.CutPrefix(v, "!"); ok {
						return socketmap.Reply{Status: socketmap.Status(word), Text: "no answer today"}
					}
					return socketmap.Reply{Status: socketmap.OK, Text: v}
				})
			}()
		}
	}()
	return s
}

// withSources returns a conf whose tables have these sources; those that begin with db: are
// made of the file beside them without .db.
func withSources(t *testing.T, files map[string]string, sources map[text.Kind][]string) *conf {
	t.Helper()
	c := newConf(t, files)
	for kind, list := range sources {
		for _, s := range list {
			if name, ok := strings.CutPrefix(s, "db:"); ok {
				c.compile(kind, name)
			}
		}
	}
	k := c.config()
	k.Sources = sources
	r := assert.Get(New(k))(t)
	t.Cleanup(func() {
		assert.NoError(t, r.Close())
	})
	c.Rules = r
	return c
}

func (c *conf) compile(kind text.Kind, name string) {
	c.t.Helper()
	out := filepath.Join(c.dir, name)
	assert.Get(table.Compile(kind, strings.TrimSuffix(out, ".db"), out, func(string, int64, int64) {}))(c.t)
}

// M47
func TestSourcesAreAskedInTheirOrder(t *testing.T) {
	server := newMapServer(t, map[string]string{
		"aliases third": "carol", "aliases both": "dave", "aliases owner": "|/bin/prog",
		"routes .c.example": "smtp!server", "routes .": "smtp!server-default", "routes a.b.example": "smtp!late",
		"fqdnaliases @whole.example": "carol", "localnames ours.example": "anything",
	})
	socket := "socket:unix:" + server.path
	c := withSources(t, map[string]string{
		"users": "carol\ndave\n", "aliases": "first: carol\nboth: carol\n", "more": "second: dave\nprog: |/bin/prog\nfirst: dave\n",
		"routes": "a.b.example smtp!exact\n.example smtp!suffix\n", "routes2": ".b.example smtp!longer\n.:ERROR smtp!reports\n",
		"fqdnaliases": "x@whole.example: dave\n", "localnames": "file.example\n",
	}, map[text.Kind][]string{
		text.Aliases: {"aliases", "db:more.db", socket}, text.Routes: {"file:routes", "db:routes2.db", socket},
		text.FQDNAliases: {socket, "fqdnaliases"}, text.LocalNames: {"localnames", socket},
	})
	local := func(login string) []string {
		return []string{"local " + login + "@mx.example.org " + login + "@mx.example.org UID"}
	}
	smtp := func(host, rcpt string) []string { return []string{"smtp " + host + " " + rcpt + " 65534"} }
	tests := map[string]struct {
		rcpt string
		want []string
	}{
		"in the first":                         {"first", local("carol")},
		"in the first and the third":           {"both", local("carol")},
		"in a compiled table":                  {"Second", local("dave")},
		"in a server":                          {"third", local("carol")},
		"program of a compiled table":          {"prog", []string{"pipe pipe |/bin/prog UID"}},
		"program of a server":                  {"owner", []string{"error unsafe: |/bin/prog in " + socket + ": " + socket + " acts as nobody: owner 65534"}},
		"nowhere":                              {"nobody-here", []string{"error nouser nobody-here@mx.example.org 65534"}},
		"exact route, first source":            {"x@a.b.example", smtp("exact", "x@a.b.example")},
		"longest suffix, though in the second": {"x@c.b.example", smtp("longer", "x@c.b.example")},
		"longest suffix, though in the third":  {"x@q.c.example", smtp("server", "x@q.c.example")},
		"shorter suffix before any default":    {"x@d.example", smtp("suffix", "x@d.example")},
		"default":                              {"x@other.test", smtp("server-default", "x@other.test")},
		"whole address before its domain":      {"x@whole.example", local("dave")},
		"domain of whole addresses":            {"y@whole.example", local("carol")},
		"local name in a server":               {"carol@ours.example", []string{"local carol@ours.example carol@ours.example UID"}},
		"local name in a file":                 {"carol@file.example", []string{"local carol@file.example carol@file.example UID"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			assert.Same(t, c.resolve(tt.rcpt, false), tt.want, tt.rcpt)
		})
	}
	assert.Same(t, c.resolve("x@other.test", true), smtp("reports", "x@other.test"), "report")
	if server.asked.Load() == 0 {
		t.Error("the server was never asked")
	}

	// A text file and a compiled one are read again, each in its place.
	c.write("aliases", "first: dave\n")
	c.write("more", "second: carol\n")
	c.compile(text.Aliases, "more.db")
	c.advance(period)
	if got := c.resolve("first", false); !cmp.Equal(got, local("dave")) {
		t.Errorf("changed file: got %q", got)
	}
	if got := c.resolve("second", false); !cmp.Equal(got, local("carol")) {
		t.Errorf("changed compiled table: got %q", got)
	}
}

func TestSourceThatCannotTellIsTroubleNotAMissingKey(t *testing.T) {
	server := newMapServer(t, map[string]string{
		"aliases temp": "!TEMP", "aliases perm": "!PERM", "aliases timeout": "!TIMEOUT",
		"aliases bad": "carol,, dave", "aliases empty": " ", "aliases list": ":include:lists/x",
		"routes bad.example": "smtp:host", "fqdnaliases x@a.example": "!TEMP", "localnames down.example": "!TEMP",
	})
	socket := "socket:unix:" + server.path
	gone := "socket:unix:" + filepath.Join(t.TempDir(), "nobody-listens")
	tests := map[string]struct {
		kind   text.Kind
		source string
		rcpt   string
		want   []string // besides the source
	}{
		"temporary":            {text.Aliases, socket, "temp", []string{"no answer today"}},
		"permanent":            {text.Aliases, socket, "perm", []string{"no answer today"}},
		"time limit":           {text.Aliases, socket, "timeout", []string{"no answer today"}},
		"no server listens":    {text.Aliases, gone, "x", []string{"no such file"}},
		"value with a hole":    {text.Aliases, socket, "bad", []string{"bad: bad value", "empty value"}},
		"no value":             {text.Aliases, socket, "empty", []string{"no value"}},
		"relative include":     {text.Aliases, socket, "list", []string{"path from the root"}},
		"route without !":      {text.Routes, socket, "x@bad.example", []string{"bad.example", `no ! in "smtp:host"`}},
		"whole address":        {text.FQDNAliases, socket, "x@a.example", []string{"no answer today"}},
		"domain that is ours?": {text.LocalNames, socket, "x@down.example", []string{"no answer today"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			c := withSources(t, map[string]string{"users": "carol\n"}, map[text.Kind][]string{tt.kind: {tt.source}})
			m := assert.Get(address.Parse(tt.rcpt))(t)
			list, err := collect(c.Tables(), m, false)
			trouble, ok := IsTrouble(err)
			if !ok || trouble.Why != string(tt.kind) {
				t.Fatalf("got %v, %v, want trouble with %s", list, err, tt.kind)
			}
			for _, part := range append(tt.want, tt.source) {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("got %q, want %q in it", err, part)
				}
			}
		})
	}
}

func TestSourceThatCanNeverWorkIsAConfigurationError(t *testing.T) {
	tests := map[string]string{
		"file that is named and missing": "file:nowhere",
		"unknown kind":                   "nis:aliases",
		"server of no family":            "socket:ipx:1",
	}
	for name, source := range tests {
		c := newConf(t, nil)
		k := c.config()
		k.Sources = map[text.Kind][]string{text.Aliases: {source}}
		if _, err := New(k); config.Exit(err) != config.ExitConfig {
			t.Errorf("%s: got %v, want a configuration error", name, err)
		}
	}
}

func TestCheckAsksSourcesAndReadsLists(t *testing.T) {
	gone := "socket:unix:" + filepath.Join(t.TempDir(), "nobody-listens")
	c := withSources(t, map[string]string{
		"users": "carol\n", "aliases": "", "lists/good": "carol\n", "lists/bad": "# x\ncarol\na b\n", "lists/Upper": "carol\n", "lists/bad~": "a b\n",
	}, map[text.Kind][]string{text.Aliases: {"aliases", gone}})
	err := c.Check(t.Context())
	if config.Exit(err) != config.ExitConfig {
		t.Fatalf("got %v, want configuration errors", err)
	}
	for _, want := range []string{gone + ": cannot be asked for aliases", "lists/bad:3: bad line of a list", "lists/Upper: upper case"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q in it", err, want)
		}
	}
	for _, not := range []string{"good", "bad~"} {
		if strings.Contains(err.Error(), not) {
			t.Errorf("got %v, want nothing of %s", err, not)
		}
	}
}
