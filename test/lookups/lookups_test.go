// Package lookups tests the sources of tables that ask servers against the real servers, and
// beside Postfix's clients of the same servers.
package lookups

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	_ "modernc.org/sqlite" // makes what the program lookup reads

	"zmailer/internal/run/assert"
	"zmailer/internal/run/hostile"
	"zmailer/internal/table"
	"zmailer/test/rig"
	"zmailer/test/suite"
)

var program = suite.Program{Name: "lookup"}

func TestMain(m *testing.M) { os.Exit(program.Main(m)) }

// open opens a source as the router does.
func open(t testing.TB, source string, timeout time.Duration) table.Table {
	t.Helper()
	opened := assert.Get(table.Open(source, table.Options{
		Name: "aliases", Dir: t.TempDir(), Timeout: timeout, Programs: filepath.Dir(program.Path(t)),
	}))(t)
	t.Cleanup(func() { assert.NoError(t, opened.Close()) })
	return opened
}

// ask returns what a lookup comes to: a value, "none" or "error".
func ask(t table.Table, key string) (string, error) {
	v, ok, err := t.Lookup(context.Background(), key)
	switch {
	case err != nil:
		return "error", err
	case !ok:
		return "none", nil
	}
	return v.Text, nil
}

// backend is a kind of server with the table of aliases in it.
type backend struct {
	scheme string
	start  func(t testing.TB) *server
	fill   func(s *server, rows map[string]string)
	dump   func(s *server) string // all of the table, to see that it is as it was
	source func(t testing.TB, s *server) string
	nul    bool // its keys may have NUL
	// postfix is the name and the settings of Postfix's client.
	postfix func(s *server) (kind, text string)
	many    func(t testing.TB, s *server) string // a source that has a million values for a key
}

const sqlTable = "CREATE TABLE aliases (name %s PRIMARY KEY, value %s); "

func literal(s string, bytes string) string { return fmt.Sprintf(bytes, fmt.Sprintf("%x", s)) }

func inserts(rows map[string]string, bytes string) string {
	var b strings.Builder
	for _, key := range slices.Sorted(maps.Keys(rows)) {
		fmt.Fprintf(&b, "INSERT INTO aliases VALUES (%s, %s);\n", literal(key, bytes), literal(rows[key], bytes))
	}
	return b.String()
}

func sqlSource(scheme, host, password, query string) func(t testing.TB, s *server) string {
	return func(t testing.TB, s *server) string {
		return write(t, scheme, "hosts = unix:%s\nuser = mail\ndbname = %s\n%squery = %s\n", s.address, host, password, query)
	}
}

func backends() []backend {
	pgsql := func(query string) func(testing.TB, *server) string { return sqlSource("pgsql", "postgres", "", query) }
	mysql := func(query string) func(testing.TB, *server) string {
		return sqlSource("mysql", "mail", "password = pass word\n", query)
	}
	return []backend{
		{
			scheme: "pgsql", start: postgres,
			fill: func(s *server, rows map[string]string) {
				s.psql(fmt.Sprintf(sqlTable, "text", "text") + inserts(rows, `convert_from('\x%s', 'UTF8')`))
			},
			dump:   func(s *server) string { return s.psql("SELECT * FROM aliases ORDER BY name") },
			source: pgsql("SELECT value FROM aliases\n  WHERE name = :key"),
			postfix: func(s *server) (string, string) {
				return "pgsql", "hosts = unix:" + filepath.Dir(s.address) + "\nuser = mail\npassword = x\ndbname = postgres\nquery = SELECT value FROM aliases WHERE name = '%s'\n"
			},
			many: pgsql("SELECT value FROM aliases, generate_series(1, 1000000) WHERE name = :key"),
		},
		{
			scheme: "mysql", start: mariadb, nul: true,
			fill: func(s *server, rows map[string]string) {
				s.mysql("USE mail; " + fmt.Sprintf(sqlTable, "varchar(400) COLLATE utf8mb4_nopad_bin", "text") + inserts(rows, "x'%s'"))
			},
			dump:   func(s *server) string { return s.mysql("SELECT hex(name), value FROM mail.aliases ORDER BY name") },
			source: mysql("SELECT value FROM aliases WHERE name = :key"),
			postfix: func(s *server) (string, string) {
				return "mysql", "hosts = unix:" + s.address + "\nuser = mail\npassword = pass word\ndbname = mail\noption_file =\ncharset = utf8mb4\nquery = SELECT value FROM aliases WHERE name = '%s'\n"
			},
			many: mysql("SELECT value FROM aliases, seq_1_to_1000000 WHERE name = :key"),
		},
		{
			scheme: "redis", start: redis, nul: true,
			fill: func(s *server, rows map[string]string) {
				var b strings.Builder
				send := func(words ...string) {
					fmt.Fprintf(&b, "*%d\r\n", len(words))
					for _, w := range words {
						fmt.Fprintf(&b, "$%d\r\n%s\r\n", len(w), w)
					}
				}
				for key, value := range rows {
					send("SET", "alias:"+key, value)
				}
				for range 1000 {
					send(append([]string{"RPUSH", "alias:known-list"}, slices.Repeat([]string{"ok@x.example"}, 1000)...)...)
				}
				run(s.t, nil, b.String(), "/usr/bin/redis-cli", "-s", s.address, "--pipe")
			},
			dump: func(s *server) string {
				return run(s.t, nil, "", "/usr/bin/redis-cli", "-s", s.address, "--raw", "DEBUG", "DIGEST")
			},
			source: func(t testing.TB, s *server) string {
				return write(t, "redis", "hosts = %s\ncommand = GET alias:%%s\n", s.address)
			},
			many: func(t testing.TB, s *server) string {
				return write(t, "redis", "hosts = %s\ncommand = LRANGE alias:%%s-list 0 -1\n", s.address)
			},
		},
	}
}

// rowsOf returns what a table has: a value for "known" and for every second address.
func rowsOf(list []string, nul bool) map[string]string {
	rows := map[string]string{"known": "ok@x.example"}
	for i := 0; i < len(list); i += 2 {
		if nul || !strings.Contains(list[i], "\x00") {
			rows[list[i]] = fmt.Sprintf("mine-%d@x.example", i)
		}
	}
	return rows
}

func checkAll(t *testing.T, opened table.Table, list []string, rows map[string]string) {
	t.Helper()
	for _, key := range append([]string{"known"}, list...) {
		want, ok := rows[key]
		if !ok {
			want = "none"
		}
		if got, err := ask(opened, key); got != want {
			t.Errorf("%q: got %s (%v), want %s", key, got, err, want)
		}
	}
}

// No address that a stranger could send means anything to the server but itself; every
// address of the corpus is looked up, and Postfix's client finds the same.
func TestNoAddressChangesAQuery(t *testing.T) {
	list := hostile.Texts(t)
	for _, b := range backends() {
		t.Run(b.scheme, func(t *testing.T) {
			t.Parallel()
			s := b.start(t)
			rows := rowsOf(list, b.nul)
			b.fill(s, rows)
			before := b.dump(s)
			checkAll(t, open(t, b.source(t, s), limit), list, rows)
			assert.Equal(t, b.dump(s), before, "the table afterwards")
			if b.postfix != nil {
				checkPostfix(t, b, s, list, rows)
			}
		})
	}
	t.Run("http", func(t *testing.T) {
		rows := rowsOf(list, true)
		service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			query := r.URL.Query()
			key, ok := strings.CutPrefix(r.URL.Path, "/in/")
			if r.Method != http.MethodGet || !ok || len(query) != 2 || query.Get("a") != key || query.Get("b") != "" || len(query["a"]) != 1 || r.Header.Get("Authorization") != "Bearer x" {
				http.Error(w, "not the request of the settings", http.StatusBadRequest)
				return
			}
			var value any
			if text, ok := rows[key]; ok {
				value = text
			}
			_ = json.NewEncoder(w).Encode(map[string]any{"data": map[string]any{"to": value}})
		}))
		t.Cleanup(service.Close)
		checkAll(t, open(t, write(t, "http", "url = %s/in/%%s?a=%%s&b=\nauthorization = Bearer x\nvalue = data.to\n", service.URL), limit), list, rows)
	})
	t.Run("ldap", func(t *testing.T) {
		t.Parallel()
		rows := rowsOf(list, true)
		s := slapd(t, rows)
		source := write(t, "ldap", "url = ldap://%s\nbase = dc=x\nfilter = (userPassword=%%s)\nattributes = description\n", s.address)
		checkAll(t, open(t, source, limit), list, rows)
	})
	t.Run("sqlite", func(t *testing.T) {
		t.Parallel()
		rows := rowsOf(list, true)
		path := filepath.Join(t.TempDir(), "db")
		db := assert.Get(sql.Open("sqlite", path))(t)
		assert.Get(db.Exec("CREATE TABLE aliases (name, value)"))(t)
		for key, value := range rows {
			assert.Get(db.Exec("INSERT INTO aliases VALUES (?, ?)", key, value))(t)
		}
		assert.NoError(t, db.Close())
		checkAll(t, open(t, write(t, "sqlite", "database = %s\nquery = SELECT value FROM aliases WHERE name = :key\n", path), limit), list, rows)
	})
	t.Run("exec", func(t *testing.T) {
		t.Parallel()
		rows := rowsOf(list, true)
		path := filepath.Join(t.TempDir(), "rows")
		assert.Must(t, os.WriteFile(path, assert.Get(json.Marshal(rows))(t), 0o600))
		source := "exec:" + find(t, "/usr/bin/python3", "python3") + " " + assert.Get(filepath.Abs("testdata/socketmap.py"))(t) + " " + path
		checkAll(t, open(t, source, limit), list, rows)
	})
	t.Run("regexp", func(t *testing.T) {
		opened := open(t, write(t, "regexp", "/^known$/ ok@x.example\n/^(.*)$/i all-$1@y.example\n"), limit)
		for _, key := range list {
			got, err := ask(opened, key)
			// What is filled in is one word of an address, or nothing is.
			name, ok := strings.CutPrefix(strings.TrimSuffix(got, "@y.example"), "all-")
			if got != "none" && got != "ok@x.example" && (!ok || name != key || strings.ContainsAny(name, "|/:;,\\\"'`<>(){}[]$&*?!%# \t\r\n\x00")) || err != nil {
				t.Errorf("%q: got %q, %v", key, got, err)
			}
		}
	})
}

// checkPostfix looks the addresses up by Postfix's own client.
func checkPostfix(t *testing.T, b backend, s *server, list []string, rows map[string]string) {
	postmap := find(t, "/usr/sbin/postmap", "postfix")
	kind, text := b.postfix(s)
	find(t, "/usr/lib/postfix/postfix-"+kind+".so*", "postfix-"+kind)
	dir := t.TempDir()
	assert.Must(t, errors.Join(os.WriteFile(dir+"/main.cf", []byte("compatibility_level = 3.6\nmail_owner = postfix\n"), 0o644), os.WriteFile(dir+"/map.cf", []byte(text), 0o644)))
	var keys []string
	for _, key := range append([]string{"known"}, list...) {
		// postmap reads keys as lines, and folds the case of a key as the router does before.
		if !strings.ContainsAny(key, "\n\r\x00") && strings.TrimSpace(key) == key && strings.ToLower(key) == key && !strings.HasPrefix(key, "#") {
			keys = append(keys, key)
		}
	}
	cmd := postmap
	out := run(t, nil, strings.Join(keys, "\n")+"\n", cmd, "-c", dir, "-q", "-", kind+":"+dir+"/map.cf")
	found := map[string]string{}
	for line := range strings.Lines(out) {
		if i := strings.LastIndexByte(line, '\t'); i >= 0 {
			found[line[:i]] = strings.TrimSpace(line[i+1:])
		}
	}
	if len(found) < 50 {
		t.Fatalf("Postfix finds %d of %d addresses:\n%s", len(found), len(keys), out)
	}
	for _, key := range keys {
		// Postfix's clients do not send UTF-8.
		ascii := strings.IndexFunc(key, func(r rune) bool { return r >= 0x80 }) < 0
		if found[key] != rows[key] && ascii {
			t.Errorf("%q: Postfix has %q, we have %q", key, found[key], rows[key])
		}
	}
}

// A table of patterns has the form of Postfix's and the same results.
func TestPatternsMatchAsThoseOfPostfix(t *testing.T) {
	postmap := find(t, "/usr/sbin/postmap", "postfix")
	const lines = `# a comment
/^postmaster@/          root@x.example
/^(.+)-request@(lists\.example)$/ owner-$1@${2}
!/@/                    local-only
if /@virtual\.example$/
/^info@/                info@
   x.example
if !/^no/
/^([a-z]+)\.([a-z]+)@/  $2-$(1)@people.example
endif
/^yes/i                 case@x.example
endif
|^slash/@|              slash@x.example
/^dollar@/              a$$b@x.example
/^twice@/               first@x.example
/^twice@/               second@x.example
`
	keys := []string{
		"postmaster@a.example", "POSTMASTER@a.example", "a-request@lists.example", "a-b-request@lists.example", "a-request@lists_example",
		"joe", "info@virtual.example", "info@other.example", "john.smith@virtual.example", "no.body@virtual.example", "john.smith@other.example",
		"yes@virtual.example", "YES@virtual.example", "slash/@x.example", "slash@x.example", "dollar@x.example", "twice@x.example", "none@x.example",
	}
	dir := t.TempDir()
	assert.Must(t, errors.Join(os.WriteFile(dir+"/main.cf", []byte("compatibility_level = 3.6\nmail_owner = postfix\n"), 0o644), os.WriteFile(dir+"/map", []byte(lines), 0o644)))
	ours := open(t, "regexp:"+dir+"/map", limit)
	for _, key := range keys {
		out, err := exec.Command(postmap, "-c", dir, "-q", key, "regexp:"+dir+"/map").Output() // fails if there is none
		want := strings.TrimSuffix(string(out), "\n")
		if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && exit.ExitCode() == 1 && len(exit.Stderr) == 0 {
			want = "none"
		} else if err != nil {
			t.Fatalf("%s: %v", key, err)
		}
		if got, err := ask(ours, key); got != want {
			t.Errorf("%s: got %s (%v), Postfix has %s", key, got, err, want)
		}
	}
}

// eventually waits until a lookup has an answer; it is asked again for as long as it fails.
func eventually(t testing.TB, opened table.Table, key, want string) {
	t.Helper()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.After(limit); ; {
		got, err := ask(opened, key)
		if got == want {
			return
		}
		if got != "error" {
			t.Fatalf("%s: got %s, want %s", key, got, want)
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("%s: still %v", key, err)
		}
	}
}

// A server that is down, restarted, stopped, or that answers without end never makes a
// recipient unknown; when it answers again, so do lookups, without anybody's doing.
func TestServerInTroubleIsNeverANo(t *testing.T) {
	for _, b := range backends() {
		t.Run(b.scheme, func(t *testing.T) {
			t.Parallel()
			s := b.start(t)
			b.fill(s, map[string]string{"known": "ok@x.example"})
			opened := open(t, b.source(t, s), 2*time.Second)
			eventually(t, opened, "known", "ok@x.example")
			s.pause()
			for _, key := range []string{"known", "unknown"} {
				if got, _ := ask(opened, key); got != "error" {
					t.Errorf("stopped: %s: got %s", key, got)
				}
			}
			s.resume()
			eventually(t, opened, "known", "ok@x.example")
			eventually(t, opened, "unknown", "none")
			s.stop()
			for _, key := range []string{"known", "unknown"} {
				if got, _ := ask(opened, key); got != "error" {
					t.Errorf("down: %s: got %s", key, got)
				}
			}
			s.start()
			if b.scheme == "redis" { // it keeps nothing
				b.fill(s, map[string]string{"known": "ok@x.example"})
			}
			eventually(t, opened, "known", "ok@x.example")
			eventually(t, opened, "unknown", "none")
			many := open(t, b.many(t, s), 20*time.Second)
			if got, err := ask(many, "known"); got != "error" {
				t.Errorf("a million values: got %.40s, %v", got, err)
			}
			eventually(t, opened, "known", "ok@x.example")
		})
	}
}

// A server that speaks something else, or without end, makes a failure, and its lookup ends.
func TestGarbageIsAFailure(t *testing.T) {
	answers := map[string]func(net.Conn){
		"nothing": func(c net.Conn) { c.Close() },
		"garbage": func(c net.Conn) {
			g := rand.New(rand.NewPCG(1, 2))
			b := make([]byte, 512)
			for i := range b {
				b[i] = byte(g.Uint32())
			}
			_, _ = c.Write(b)
			c.Close()
		},
		"text": func(c net.Conn) {
			fmt.Fprint(c, "220 mail.example ESMTP\r\n")
			_ = c.SetDeadline(time.Now().Add(limit))
			_, _ = c.Read(make([]byte, 1))
			c.Close()
		},
		"endless": func(c net.Conn) {
			b := []byte(strings.Repeat("$1000000\r\n", 6554))
			for {
				if _, err := c.Write(b); err != nil {
					c.Close()
					return
				}
			}
		},
		"endless list": func(c net.Conn) {
			fmt.Fprint(c, "*1000000000\r\n")
			b := []byte(strings.Repeat("$1\r\nx\r\n", 9000))
			for {
				if _, err := c.Write(b); err != nil {
					c.Close()
					return
				}
			}
		},
		"length of a gigabyte": func(c net.Conn) {
			_, _ = c.Write([]byte{0x30, 0x84, 0x3f, 0xff, 0xff, 0xff, 0x04, 0x84, 0x3f, 0xff, 0xff, 0xf0})
			_ = c.SetDeadline(time.Now().Add(limit))
			_, _ = io.Copy(io.Discard, c)
			c.Close()
		},
		"endless page": func(c net.Conn) {
			fmt.Fprint(c, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n[")
			b := []byte(strings.Repeat(`"a@x.example",`, 5000))
			for {
				if _, err := c.Write(b); err != nil {
					c.Close()
					return
				}
			}
		},
	}
	for name, answer := range answers {
		for scheme, settings := range map[string]string{
			"pgsql": "hosts = %s\nuser = u\ndbname = d\nquery = SELECT :key\n", "mysql": "hosts = %s\nuser = u\ndbname = d\nquery = SELECT :key\n",
			"redis": "hosts = %s\ncommand = LRANGE %%s\n", "http": "url = http://%s/%%s\n", "http text": "format = text\nurl = http://%s/%%s\n",
			"ldap": "url = ldap://%s\nbase = dc=x\nfilter = (cn=%%s)\nattributes = a\n",
		} {
			t.Run(scheme+" "+name, func(t *testing.T) {
				t.Parallel()
				kind, _, _ := strings.Cut(scheme, " ")
				opened := open(t, write(t, kind, settings, rig.Serve(t, "tcp", answer)), time.Second)
				for range 2 {
					if got, err := ask(opened, "known"); got != "error" {
						t.Errorf("got %s, %v", got, err)
					}
				}
			})
		}
	}
}

// A web service means "no such key" only by what the settings name.
func TestWebServiceMeansNoOnlyWhereItIsSaid(t *testing.T) {
	tests := map[string]struct {
		settings string
		status   int
		body     string
		want     string
	}{
		"value":               {"value = a.b\n", 200, `{"a":{"b":"x@y"}}`, "x@y"},
		"list":                {"value = a\n", 200, `{"a":["x@y",7,true]}`, "x@y, 7, true"},
		"no way":              {"", 200, `"x@y"`, "x@y"},
		"null":                {"value = a\n", 200, `{"a":null}`, "none"},
		"null above":          {"value = a.b\n", 200, `{"a":null}`, "none"},
		"false":               {"value = a\n", 200, `{"a":false}`, "none"},
		"empty list":          {"value = a\n", 200, `{"a":[]}`, "none"},
		"no content":          {"", 204, "", "none"},
		"404":                 {"", 404, `null`, "error"},
		"404 set":             {"not_found = 404\n", 404, `x`, "none"},
		"other member":        {"value = a\n", 200, `{"b":"x"}`, "error"},
		"object":              {"value = a\n", 200, `{"a":{"b":"x"}}`, "error"},
		"text for JSON":       {"", 200, `x@y`, "error"},
		"two values":          {"", 200, `"x" "y"`, "error"},
		"empty":               {"", 200, ``, "error"},
		"redirect":            {"not_found = 404\n", 302, `null`, "error"},
		"error":               {"", 500, `null`, "error"},
		"not allowed":         {"", 401, `null`, "error"},
		"lines":               {"format = text\n", 200, "x@y\nz@y\r\n", "x@y, z@y"},
		"no lines":            {"format = text\n", 200, "\n", "none"},
		"binary":              {"format = text\n", 200, "x\x00y", "error"},
		"too many":            {"limit = 2\n", 200, `["a","b","c"]`, "error"},
		"deep":                {"", 200, strings.Repeat("[", 200000), "error"},
		"larger than allowed": {"", 200, `"` + strings.Repeat("x", 2<<20) + `"`, "error"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Location", "/")
				w.WriteHeader(tt.status)
				_, _ = w.Write([]byte(tt.body))
			}))
			t.Cleanup(service.Close)
			opened := open(t, write(t, "http", "url = %s/%%s\n%s", service.URL, tt.settings), limit)
			if got, err := ask(opened, "k"); got != tt.want {
				t.Errorf("got %s (%v), want %s", got, err, tt.want)
			}
		})
	}
}
