package postoffice

import (
	"os"
	"testing"
	"time"

	"zmailer/internal/run/assert"
)

// A25: what is in a directory is counted from the files, and the oldest found.
func TestStandingCountsMessagesOnly(t *testing.T) {
	p, dir := newPostOffice(t, 0)
	old := time.Date(2026, 11, 20, 1, 2, 3, 0, time.UTC)
	for name, mode := range map[string]os.FileMode{
		"router/11": 0o700, "router/12-7": 0o700, "router/..12-7": 0o600, "router/.tries.11": 0o600, "router/core": 0o600,
		"public/a": 0o700, "public/b": 0o600, "deferred/13.include": 0o700,
	} {
		assert.Must(t, os.WriteFile(dir+"/"+name, nil, mode))
	}
	assert.Must(t, os.Chtimes(dir+"/router/12-7", old, old))
	for where, want := range map[string]int{Router: 2, Public: 1, Deferred: 1, Freezer: 0} {
		got, err := p.Standing(where)
		if err != nil || got.Count != want {
			t.Errorf("%s: %+v, %v, want %d", where, got, err, want)
		}
		if where == Router && !got.Oldest.Equal(old) || where == Freezer && !got.Oldest.IsZero() {
			t.Errorf("%s: the oldest is from %v", where, got.Oldest)
		}
	}
}

func TestAlarmFileIsReplacedAndRemoved(t *testing.T) {
	p, _ := newPostOffice(t, 0)
	for _, text := range []string{"", "one\n", "two\n", "", ""} {
		assert.Must(t, p.WriteAlarms([]byte(text)))
		if got, err := p.ReadAlarms(); err != nil || string(got) != text {
			t.Errorf("got %q, %v, want %q", got, err, text)
		}
	}
}
