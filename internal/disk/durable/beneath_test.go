package durable_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"zmailer/internal/disk/durable"
	"zmailer/internal/run/assert"
)

// theirs returns a directory of another user's, in which root works, and a file of root's
// that the user has linked to names in it.
func theirs(t *testing.T) (f *durable.OS, dir, victim string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root works in other users' directories")
	}
	f, dir = newOS(t)
	f.Inherit()
	f.Beneath()
	assert.Must(t, os.Chown(dir, other, other))
	victim = filepath.Join(t.TempDir(), "victim")
	assert.Must(t, errors.Join(os.WriteFile(victim, []byte("root's\n"), 0o644), os.Chmod(victim, 0o644)))
	return f, dir, victim
}

func untouched(t *testing.T, victim string) {
	t.Helper()
	b, err := os.ReadFile(victim)
	if err != nil || string(b) != "root's\n" {
		t.Errorf("root's file: got %q, %v", b, err)
	}
	if info, err := os.Stat(victim); err != nil || info.Mode().Perm() != 0o644 {
		t.Errorf("root's file: got mode %v, %v", info.Mode(), err)
	}
}

// Sec1: root writes to no file that the owner of a directory has linked there, and changes
// no mode of one.
func TestSec1RootWritesToNoLinkedFile(t *testing.T) {
	f, dir, victim := theirs(t)
	assert.Must(t, os.Link(victim, filepath.Join(dir, "l")))
	for what, flag := range map[string]int{
		"opened": os.O_RDWR, "opened to append": os.O_WRONLY | os.O_APPEND,
		"made": os.O_RDWR | os.O_CREATE, "emptied": os.O_WRONLY | os.O_CREATE | os.O_TRUNC,
	} {
		h, err := f.Open("l", flag, 0o600)
		if !errors.Is(err, durable.ErrLinked) {
			t.Errorf("%s: got %v, want ErrLinked", what, err)
		}
		if err == nil {
			h.Close()
		}
		untouched(t, victim)
	}
	if h, err := durable.OpenLocking(f, "l", os.O_RDWR); err == nil {
		t.Error("a file with a lock is opened")
		h.Close()
	}
	untouched(t, victim)
	l := assert.Get(f.Lock("l", []byte("who")))(t)
	assert.NoError(t, l.Release())
	untouched(t, victim)
}

// What the owner of the directory has linked there is the owner's own: it is written to.
func TestLinkedFileOfTheDirectorysOwnerIsWritten(t *testing.T) {
	f, dir, victim := theirs(t)
	assert.Must(t, errors.Join(os.Chown(victim, other, other), os.Link(victim, filepath.Join(dir, "l"))))
	h := assert.Get(f.Open("l", os.O_WRONLY|os.O_TRUNC, 0))(t)
	assert.NoError(t, h.Close())
	if info, err := os.Stat(victim); err != nil || info.Size() != 0 {
		t.Errorf("got %d bytes, %v, want none", info.Size(), err)
	}
}

// A fifo under a name that root opens keeps root from nothing.
func TestRootDoesNotWaitForAFifo(t *testing.T) {
	f, dir, _ := theirs(t)
	assert.Must(t, unix.Mkfifo(filepath.Join(dir, "fifo"), 0o666))
	for what, flag := range map[string]int{"read": os.O_RDONLY, "write": os.O_WRONLY | os.O_CREATE, "both": os.O_RDWR} {
		done := make(chan error, 1)
		go func() {
			h, err := f.Open("fifo", flag, 0o600)
			if err == nil {
				_ = h.Close()
			}
			done <- err
		}()
		select {
		case err := <-done:
			if err == nil && flag != os.O_RDONLY {
				t.Errorf("%s: a fifo is opened for writing", what)
			}
		case <-time.After(20 * time.Second):
			t.Fatalf("%s: the open hangs", what)
		}
	}
}

// Sec1: no directory below the root of the file system may be a link out of it, whatever is
// done there.
func TestSec1RootFollowsNoLinkOutOfTheirDirectory(t *testing.T) {
	f, dir, victim := theirs(t)
	out := filepath.Dir(victim)
	assert.Must(t, errors.Join(os.Symlink(out, filepath.Join(dir, "queue")), os.WriteFile(filepath.Join(dir, "mine"), nil, 0o600)))
	open := func(flag int) error {
		h, err := f.Open("queue/victim", flag, 0o600)
		if err == nil {
			_ = h.Close()
		}
		return err
	}
	_, rerr := f.ReadDir("queue")
	_, serr := f.Stat("queue/victim")
	_, lerr := f.Lock("queue/lock", nil)
	for what, err := range map[string]error{
		"open": open(os.O_RDONLY), "write": open(os.O_RDWR), "create": open(os.O_RDWR | os.O_CREATE),
		"list": rerr, "stat": serr, "lock": lerr, "sync": f.SyncDir("queue"),
		"rename into": f.RenameNew("mine", "queue/mine"), "replace": f.Rename("mine", "queue/victim"),
		"rename out of": f.RenameNew("queue/victim", "taken"), "link": f.Link("mine", "queue/mine"),
		"exchange": f.Exchange("mine", "queue/victim"),
		"mkdir":    f.Mkdir("queue/sub", 0o700), "remove": f.Remove("queue/victim"),
	} {
		if err == nil {
			t.Errorf("%s: it follows the link", what)
		}
	}
	untouched(t, victim)
	list, err := os.ReadDir(out)
	if err != nil || len(list) != 1 {
		t.Errorf("root's directory: got %v, %v, want one file", list, err)
	}
}
