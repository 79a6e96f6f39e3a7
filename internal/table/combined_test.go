package table

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"zmailer/internal/run/assert"
	"zmailer/internal/run/config"
)

func TestCombinedSourcesAskTheirParts(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"a": "/^one$/ two\n/^both$/ a@x.example\n", "b": "/^two$/ three\n/^both$/ b@x.example\n/^only$/ b@x.example\n", "aliases": "both: file\n",
	} {
		assert.Must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	list := assert.Get(Split("pipemap:{regexp:a, regexp:b} unionmap:{regexp:a, regexp:b,aliases} pipemap:{regexp:a,unionmap:{regexp:b, exec:/nonexistent/x}}"))(t)
	if len(list) != 3 {
		t.Fatalf("got %q", list)
	}
	o := Options{Name: "aliases", Dir: dir}
	for _, tt := range []struct {
		source int
		key    string
		want   string // "": none
	}{
		{0, "one", "three"}, {0, "two", ""}, {0, "both", ""},
		{1, "both", "a@x.example, b@x.example, file"}, {1, "only", "b@x.example"}, {1, "none", ""},
	} {
		opened := assert.Get(Open(list[tt.source], o))(t)
		v, ok, err := opened.Lookup(context.Background(), tt.key)
		if v.Text != tt.want || ok != (tt.want != "") || err != nil {
			t.Errorf("%s: %s: got %q, %v, %v, want %q", list[tt.source], tt.key, v.Text, ok, err, tt.want)
		}
		if ok && v.UID != Nobody {
			t.Errorf("%s: %s: acts as %d", list[tt.source], tt.key, v.UID)
		}
		assert.NoError(t, opened.Close())
	}
	if _, err := Open(list[2], o); err == nil {
		t.Error("a part that cannot be opened is not refused")
	}
	// One part that cannot answer makes all of it unknown.
	assert.Must(t, os.WriteFile(filepath.Join(dir, "program"), []byte("#!/bin/sh\nexit 1\n"), 0o755))
	opened := assert.Get(Open("unionmap:{regexp:a, exec:"+dir+"/program}", o))(t)
	if v, ok, err := opened.Lookup(context.Background(), "both"); err == nil {
		t.Errorf("got %v, %v", v, ok)
	}
	assert.NoError(t, opened.Close())
	for _, bad := range []string{"pipemap:", "pipemap:{", "pipemap:a,b", "unionmap:{}", "unionmap:{a,}", "unionmap:{nosuch:x}", "pipemap:{a}}", "pipemap:{{a}"} {
		if _, err := Open(bad, o); err == nil {
			t.Errorf("%s is taken", bad)
		}
	}
}

func TestBadPatternsAreNamedByLine(t *testing.T) {
	path := filepath.Join(t.TempDir(), "map")
	for text, line := range map[string]int{
		"/a/ b\n/(/ x\n": 2, "a b\n": 1, "\n/a b\n": 2, "/a/\n": 1, "/a/z b\n": 1, "if /a/ x\nendif\n": 1, "if /a/\n/b/ c\n": 1,
		"endif\n": 1, "/(a)/ $2\n": 1, "!/(a)/ $1\n": 1, "/a/ $x\n": 1, "/a/ ${1\n": 1, "/(?=a)/ b\n": 1, `/(a)\1/ b`: 1,
	} {
		assert.Must(t, os.WriteFile(path, []byte(text), 0o600))
		_, err := Open("regexp:"+path, Options{Name: "aliases"})
		if bad := (*config.Error)(nil); !errors.As(err, &bad) || bad.File != path || bad.Line != line {
			t.Errorf("%q: got %v, want line %d", text, err, line)
		}
	}
}
