package logfile

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"zmailer/internal/run/assert"
)

// Sec1: in a directory of another user's, root's log is written to no file that the user has
// linked there, also when it is reopened; and the link keeps no one from a log.
func TestSec1LinkedLogIsNotWritten(t *testing.T) {
	dir := t.TempDir()
	path, victim := filepath.Join(dir, "log"), filepath.Join(dir, "victim")
	assert.Must(t, os.WriteFile(victim, []byte("mine\n"), 0o644))
	plant := func() {
		t.Helper()
		assert.Must(t, os.Link(victim, path))
	}
	plant()
	l := assert.Get(Open(path, true, func(int) []byte { return nil }))(t)
	assert.Must(t, os.Remove(path))
	plant()
	assert.Must(t, l.Reopen())
	assert.Get(l.In().WriteString("a line\n"))(t)
	assert.Must(t, l.Close())
	for name, want := range map[string]string{victim: "mine\n", path: "a line\n", path + Linked: "mine\n"} {
		if b, err := os.ReadFile(name); err != nil || string(b) != want {
			t.Errorf("%s: got %q, %v, want %q", filepath.Base(name), b, err, want)
		}
	}
}

// A fifo, or a symbolic link, where the log should be is refused at once.
func TestLogIsARegularFile(t *testing.T) {
	for what, plant := range map[string]func(path string) error{
		"a fifo":          func(path string) error { return unix.Mkfifo(path, 0o600) },
		"a symbolic link": func(path string) error { return os.Symlink("elsewhere", path) },
		"a directory":     func(path string) error { return os.Mkdir(path, 0o700) },
	} {
		t.Run(what, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "log")
			assert.Must(t, plant(path))
			done := make(chan error, 1)
			go func() {
				f, err := OpenFile(path, true)
				if err == nil {
					err = errors.Join(errors.New("it is opened"), f.Close())
				} else {
					err = nil
				}
				done <- err
			}()
			select {
			case err := <-done:
				assert.NoError(t, err)
			case <-time.After(20 * time.Second):
				t.Fatal("the open hangs")
			}
			if _, err := os.Lstat(filepath.Join(filepath.Dir(path), "elsewhere")); err == nil {
				t.Error("the link was followed")
			}
		})
	}
}
