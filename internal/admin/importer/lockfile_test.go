package importer

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"zmailer/internal/run/assert"
)

// A lock file that is held gets a new time; one that somebody else has put in its place
// since keeps its own, and stays.
func TestOthersLockFileIsNotTouched(t *testing.T) {
	dir := t.TempDir()
	q, err := OpenQueue(dir)
	assert.Must(t, err)
	defer q.Close()
	l, err := q.LockFile("box", "this.example")
	if err != nil || l == nil {
		t.Fatalf("%v, %v", l, err)
	}
	file := filepath.Join(dir, "box.lock")
	old, now := time.Unix(1_700_000_000, 0), time.Unix(1_800_000_000, 0)
	touched := func() time.Time {
		t.Helper()
		assert.Must(t, os.Chtimes(file, old, old))
		assert.Must(t, l.touch(now))
		info, err := os.Stat(file)
		assert.Must(t, err)
		return info.ModTime()
	}
	if got := touched(); !got.Equal(now) {
		t.Errorf("ours has the time %v, want %v", got, now)
	}
	assert.Must(t, os.Rename(file, file+".away"))
	assert.Must(t, os.WriteFile(file, []byte("4711 other.example\n"), 0o644))
	if got := touched(); !got.Equal(old) {
		t.Errorf("the other's has the time %v, want %v", got, old)
	}
	assert.NoError(t, l.Release())
	if _, err := os.Stat(file); err != nil {
		t.Errorf("the other's is gone: %v", err)
	}
}
