package sqlite

import (
	"bytes"
	"context"
	"database/sql"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"zmailer/internal/lookup/settings"
	"zmailer/internal/run/assert"
)

// limit is the time limit of lookups that do not run into it.
const limit = time.Minute

const query = "SELECT value FROM aliases WHERE name = :key ORDER BY n"

// create makes a SQLite file by statements.
func create(t testing.TB, path string, statements ...string) {
	t.Helper()
	name := url.URL{Scheme: "file", OmitHost: true, Path: path}
	db, err := sql.Open("sqlite", name.String())
	assert.Must(t, err)
	defer db.Close()
	for _, s := range append([]string{"CREATE TABLE aliases (name TEXT, value TEXT, n INTEGER)"}, statements...) {
		if _, err := db.Exec(s); err != nil {
			t.Fatalf("%s: %v", s, err)
		}
	}
}

func open(t testing.TB, path, query string, timeout time.Duration) *DB {
	t.Helper()
	if testing.Short() {
		t.Skip("SQLite is slow under the race detector")
	}
	d := Open(settings.SQLite{Database: path, Query: query, Limit: 100}, timeout)
	t.Cleanup(func() {
		assert.NoError(t, d.Close())
	})
	return d
}

// says returns what a lookup comes to, as text.
func says(d *DB, key string) string {
	text, ok, err := d.Lookup(context.Background(), key)
	switch {
	case err != nil:
		return "error: " + err.Error()
	case !ok:
		return "none"
	}
	return text
}

func TestRowsOfAKeyAreItsValue(t *testing.T) {
	path := filepath.Join(t.TempDir(), "odd name?#%.sqlite")
	d := open(t, path, query, limit)
	create(t, path, "INSERT INTO aliases VALUES ('bond','jane',1), ('bond',NULL,2), ('bond','joe',3), ('null',NULL,1), ('o''hara','x',1), ('seven',7,1)")
	for key, want := range map[string]string{
		"bond": "jane, joe", "null": "none", "nobody": "none", "o'hara": "x", "seven": "7",
		"' OR 1=1 --": "none", "": "none", "\x00": "none", "ünïcode": "none",
	} {
		assert.Equal(t, says(d, key), want, key)
	}
	d.c.Query = "SELECT :user || ' at ' || :domain, 1 WHERE :key LIKE '%@%'"
	assert.Equal(t, says(d, "a@b@x.example"), "a@b at x.example", "parts")
}

// Whatever is wrong with the file or the query, the answer is unknown.
func TestDatabaseThatCannotBeAskedIsNeverANo(t *testing.T) {
	dir := t.TempDir()
	good := filepath.Join(dir, "good")
	d := open(t, good, query, limit)
	create(t, good)
	if got := says(d, "bond"); got != "none" {
		t.Fatalf("got %q, want none", got)
	}
	empty, noDB := filepath.Join(dir, "empty"), filepath.Join(dir, "text")
	assert.Must(t, os.WriteFile(empty, nil, 0o600))
	assert.Must(t, os.WriteFile(noDB, []byte(strings.Repeat("bond: jane\n", 1000)), 0o600))
	for name, tt := range map[string]struct{ path, query, want string }{
		"missing":           {filepath.Join(dir, "none"), query, "no such file"},
		"a directory":       {dir, query, ""},
		"empty":             {empty, query, "no such table"},
		"no database":       {noDB, query, "not a database"},
		"no such column":    {good, "SELECT x FROM aliases WHERE name = :key", "no such column"},
		"no SQL":            {good, "bond? :key", "syntax error"},
		"a million rows":    {good, "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1000000) SELECT i FROM n WHERE :key != ''", "more rows"},
		"query that writes": {good, "DELETE FROM aliases WHERE name = :key RETURNING name", "readonly"},
	} {
		t.Run(name, func(t *testing.T) {
			got := says(open(t, tt.path, tt.query, limit), "bond")
			if !strings.HasPrefix(got, "error: "+tt.path+": ") || !strings.Contains(got, tt.want) {
				t.Errorf("got %q, want an error with %q", got, tt.want)
			}
		})
	}
}

func TestLockedDatabaseIsWaitedForAndThenAnError(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x")
	d := open(t, path, query, 200*time.Millisecond)
	create(t, path, "INSERT INTO aliases VALUES ('bond','jane',1)")
	writer := assert.Get(sql.Open("sqlite", path))(t)
	defer writer.Close()
	writer.SetMaxOpenConns(1)
	assert.Get(writer.Exec("BEGIN EXCLUSIVE"))(t)
	assert.Contains(t, says(d, "bond"), "locked", "locked")
	assert.Get(writer.Exec("COMMIT"))(t)
	assert.Equal(t, says(d, "bond"), "jane", "free")
}

func TestReplacedDatabaseIsAskedFromTheNextLookup(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "x")
	d := open(t, path, query, limit)
	create(t, path, "INSERT INTO aliases VALUES ('bond','old',1)")
	if got := says(d, "bond"); got != "old" {
		t.Fatalf("got %q", got)
	}
	create(t, path+".new", "INSERT INTO aliases VALUES ('bond','new',1)")
	assert.Must(t, os.Rename(path+".new", path))
	assert.Equal(t, says(d, "bond"), "new", "replaced")
	assert.Must(t, os.Remove(path))
	assert.Contains(t, says(d, "bond"), "no such file", "removed")
	create(t, path, "INSERT INTO aliases VALUES ('bond','back',1)")
	assert.Equal(t, says(d, "bond"), "back", "back")
}

// A database with a page of nothing, or without its end, gives what it had or an error.
func TestDamagedDatabaseNeverSaysThatAKeyIsNotThere(t *testing.T) {
	const n = 500
	path := filepath.Join(t.TempDir(), "x")
	open(t, path, query, limit) // or skips
	var rows []string
	for i := range n {
		rows = append(rows, fmt.Sprintf("('user%d','a@%d.example',1)", i, i))
	}
	create(t, path, "CREATE INDEX byname ON aliases (name)", "INSERT INTO aliases VALUES "+strings.Join(rows, ","))
	whole := assert.Get(os.ReadFile(path))(t)
	const page = 4096
	failed := 0
	for at := 0; at < len(whole); at += page {
		zeros := bytes.Clone(whole)
		clear(zeros[at : at+page])
		for name, b := range map[string][]byte{"cut": whole[:at], "zeros": zeros} {
			assert.Must(t, os.WriteFile(path, b, 0o600))
			d := Open(settings.SQLite{Database: path, Query: query, Limit: 100}, limit)
			for i := 0; i < n; i += 17 {
				switch got, want := says(d, fmt.Sprintf("user%d", i)), fmt.Sprintf("a@%d.example", i); {
				case strings.HasPrefix(got, "error"):
					failed++
				case got != want:
					t.Fatalf("%s at %d: user%d: got %q, want %q or an error", name, at, i, got, want)
				}
			}
			d.Close()
		}
	}
	if failed == 0 {
		t.Error("no damage was noticed: the test damages nothing")
	}
}
