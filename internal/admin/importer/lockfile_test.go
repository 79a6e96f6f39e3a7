package importer

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// A lock file that is held gets a new time; one that somebody else has put in its place
// since keeps its own, and stays.
func TestOthersLockFileIsNotTouched(t *testing.T) {
	dir := t.TempDir()
	q, err := OpenQueue(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	l, err := q.LockFile("box", "this.example")
	if err != nil || l == nil {
		t.Fatalf("%v, %v", l, err)
	}
	file := filepath.Join(dir, "box.lock")
	old, now := time.Unix(1_700_000_000, 0), time.Unix(1_800_000_000, 0)
	touched := func() time.Time {
		t.Helper()
		if err := os.Chtimes(file, old, old); err != nil {
			t.Fatal(err)
		}
		if err := l.touch(now); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(file)
		if err != nil {
			t.Fatal(err)
		}
		return info.ModTime()
	}
	if got := touched(); !got.Equal(now) {
		t.Errorf("ours has the time %v, want %v", got, now)
	}
	if err := os.Rename(file, file+".away"); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte("4711 other.example\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if got := touched(); !got.Equal(old) {
		t.Errorf("the other's has the time %v, want %v", got, old)
	}
	if err := l.Release(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(file); err != nil {
		t.Errorf("the other's is gone: %v", err)
	}
}
