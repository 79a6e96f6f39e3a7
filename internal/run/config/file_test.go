package config

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"zmailer/internal/run/assert"
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
		assert.Must(t, os.WriteFile(path, []byte(text), mode))
		assert.Must(t, os.Chmod(path, mode))
		changed = now.Add(time.Minute)
		assert.Must(t, os.Chtimes(path, changed, changed))
		now = changed.Add(time.Minute)
	}
	f := assert.Get(OpenFile(path, parseWord, FileOptions{Secret: true, Now: func() time.Time { return now }}))(t)
	check := func(step, want string) {
		t.Helper()
		assert.Equal(t, f.Current(), want, step)
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
	assert.Must(t, os.Remove(path))
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
	assert.Must(t, os.WriteFile(bad, []byte("bad"), 0o600))
	for name, path := range map[string]string{"missing": filepath.Join(dir, "none"), "a directory": dir, "broken": bad} {
		_, err := OpenFile(path, parseWord, FileOptions{Required: true})
		if cerr := (*Error)(nil); !errors.As(err, &cerr) || cerr.File != path {
			t.Errorf("%s: got %v, want a *Error of %s", name, err, path)
		}
	}
}
