package config

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// parseWord takes any text but "bad".
func parseWord(name string, text []byte) (string, error) {
	if string(text) == "bad" {
		return "", &Error{File: name, Line: 1, Reason: "bad word"}
	}
	return string(text), nil
}

func TestFileIsReadAgainWhenItHasChanged(t *testing.T) {
	path := filepath.Join(t.TempDir(), "table")
	// The machine's clock has no part in it: the file's times are set, to whole seconds,
	// which every file system keeps.
	now := time.Date(2026, 11, 21, 0, 12, 0, 0, time.UTC)
	var changed time.Time
	write := func(text string, mode os.FileMode) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		changed = now.Add(time.Minute)
		if err := os.Chtimes(path, changed, changed); err != nil {
			t.Fatal(err)
		}
		now = changed.Add(time.Minute)
	}
	f, err := OpenFile(path, parseWord, FileOptions{Secret: true, Now: func() time.Time { return now }})
	if err != nil {
		t.Fatal(err)
	}
	check := func(step, want string) {
		t.Helper()
		if got := f.Current(); got != want {
			t.Errorf("%s: got %q, want %q", step, got, want)
		}
	}
	check("not there", "")
	write("one", 0o640)
	check("made", "one")
	write("bad", 0o640)
	check("turned bad", "one")
	write("two", 0o644)
	check("readable for everybody", "one")
	write("two", 0o640)
	check("mended", "two")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	now = now.Add(time.Minute)
	check("gone, first look", "two")
	now = now.Add(time.Minute)
	check("gone, second look", "")
	write("three", 0o640)
	now = changed.Add(fileSettle - 1)
	check("just changed", "")
	now = now.Add(fileSettle)
	check("settled", "three")
}

func TestFileThatCannotBeUsedIsNamed(t *testing.T) {
	dir := t.TempDir()
	bad := filepath.Join(dir, "bad")
	if err := os.WriteFile(bad, []byte("bad"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, path := range map[string]string{"missing": filepath.Join(dir, "none"), "a directory": dir, "broken": bad} {
		_, err := OpenFile(path, parseWord, FileOptions{Required: true})
		if cerr := (*Error)(nil); !errors.As(err, &cerr) || cerr.File != path {
			t.Errorf("%s: got %v, want a *Error of %s", name, err, path)
		}
	}
}
