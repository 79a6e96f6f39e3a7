package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"zmailer/internal/run/assert"
	"zmailer/internal/run/config"
	"zmailer/internal/table"
)

// tables makes a configuration directory with these files and an empty zmailer.conf.
func tables(t *testing.T, files map[string]string) (dir, conf string) {
	t.Helper()
	t.Setenv("ZCONFIG", "")
	t.Setenv("POSTOFFICE", "")
	dir = t.TempDir()
	conf = filepath.Join(dir, "zmailer.conf")
	assert.Must(t, os.WriteFile(conf, nil, 0o644))
	for name, content := range files {
		assert.Must(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o640))
	}
	return dir, conf
}

func TestNewdbCompilesTheTableBesideTheConfiguration(t *testing.T) {
	dir, conf := tables(t, map[string]string{"aliases": "Bond: jane,\n  joe\nq: r\n"})
	out := filepath.Join(dir, "aliases.db")
	said, code, err := invoke(t, "--config", conf, "newdb", "aliases")
	if code != 0 || !strings.Contains(said, out+": 2 entries of "+filepath.Join(dir, "aliases")) || !strings.Contains(said, "does not name db:"+out) {
		t.Fatalf("got %d %v\n%s", code, err, said)
	}
	k, err := table.Open("db:"+out, table.Options{Name: "aliases"})
	assert.Must(t, err)
	defer k.Close()
	v, ok, err := k.Lookup(t.Context(), "bond")
	if v.Text != "jane,\n  joe" || v.Where != "db:"+out+":1" || !ok || err != nil {
		t.Errorf("got %+v, %v, %v", v, ok, err)
	}
	if info, err := os.Stat(out); err != nil || info.Mode().Perm() != 0o640 {
		t.Errorf("mode: got %v, %v, want that of the text", info.Mode(), err)
	}
}

func TestNewdbThatFailsLeavesTheTableThatWas(t *testing.T) {
	dir, conf := tables(t, map[string]string{"aliases": "a: old\n"})
	out := filepath.Join(dir, "aliases.db")
	exits(t, 0, "--config", conf, "newdb", "aliases")
	before, err := os.ReadFile(out)
	assert.Must(t, err)
	for name, tt := range map[string]struct{ text, want string }{
		"bad value":        {"a: b\nc: :include:x\n", "aliases:2: bad alias"},
		"twice":            {"a: b\nc: d\nA: e\n", "aliases:3: a is in line 1 already"},
		"bad address":      {"a@b..example: c\n", "aliases:1: bad alias"},
		"the first of two": {"a: b\nx: d\nx: e\nA: f\n", "aliases:3: x is in line 2 already"},
	} {
		assert.Must(t, os.WriteFile(filepath.Join(dir, "aliases"), []byte(tt.text), 0o644))
		for _, flag := range []string{"--check=true", "--check=false"} {
			_, code, err := invoke(t, "--config", conf, "newdb", flag, "aliases")
			if code != config.ExitConfig || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%s %s: got %d %v, want %q", name, flag, code, err, tt.want)
			}
		}
	}
	if after, err := os.ReadFile(out); err != nil || string(after) != string(before) {
		t.Errorf("the table was changed: %v", err)
	}
	left, err := filepath.Glob(filepath.Join(dir, ".*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %q, %v", left, err)
	}
}

func TestNewdbSaysWhatItIsMissing(t *testing.T) {
	dir, conf := tables(t, map[string]string{"shop": "a: b\n"})
	for name, tt := range map[string]struct {
		args []string
		code int
		want string
	}{
		"nothing":           {nil, config.ExitUsage, "--help"},
		"too much":          {[]string{"a", "b", "c"}, config.ExitUsage, "--help"},
		"unknown kind":      {[]string{"--kind", "users", "shop"}, config.ExitUsage, "--kind users"},
		"kind not told":     {[]string{filepath.Join(dir, "shop")}, config.ExitUsage, "--kind"},
		"no such file":      {[]string{"aliases"}, config.ExitConfig, "aliases: cannot be read: no such file"},
		"no such directory": {[]string{"--kind", "aliases", filepath.Join(dir, "shop"), filepath.Join(dir, "none/x.db")}, 1, "none"},
	} {
		_, code, err := invoke(t, append([]string{"--config", conf, "newdb"}, tt.args...)...)
		if code != tt.code || err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: got %d %v, want %d %q", name, code, err, tt.code, tt.want)
		}
	}
	exits(t, config.ExitUsage, "newdb", "aliases")
	said, code, err := invoke(t, "newdb", "--check", "--kind", "aliases", filepath.Join(dir, "shop"))
	if code != 0 || !strings.Contains(said, "shop: 1 entry") {
		t.Errorf("check: got %d %v %s", code, err, said)
	}
}

func TestNewdbSeesThatTheTableIsInUse(t *testing.T) {
	dir, conf := tables(t, map[string]string{"routes": ". smtp!\n"})
	assert.Must(t, os.WriteFile(conf, []byte("ROUTES=\"routes db:shop.db\"\n"), 0o644))
	said, code, err := invoke(t, "--config", conf, "newdb", "routes", filepath.Join(dir, "shop.db"))
	if code != 0 || strings.Contains(said, "no router uses it") {
		t.Errorf("got %d %v\n%s", code, err, said)
	}
}
