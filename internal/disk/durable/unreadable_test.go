package durable_test

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"zmailer/internal/run/assert"
)

// Sec8: a user's submit may write to public/ and not list it. With SYNC=strict it syncs that
// directory all the same.
func TestSec8DirectoryThatCannotBeReadIsSynced(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root works as another user")
	}
	dir, f := openToAll(t)
	public := filepath.Join(dir, "public")
	assert.Must(t, errors.Join(os.Mkdir(public, 0o700), os.Chmod(public, 0o733)))
	as(t, other, func() {
		if _, err := os.ReadDir(public); !errors.Is(err, os.ErrPermission) {
			t.Errorf("the directory can be read: %v", err)
		}
		assert.NoError(t, f.SyncDir("public"))
		if err := f.SyncDir("missing"); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("a directory that is not there: %v", err)
		}
	})
}

// as calls f with the rights that a user has to files.
func as(t *testing.T, uid uintptr, f func()) {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	set := func(uid uintptr) {
		if _, _, e := unix.RawSyscall(unix.SYS_SETFSUID, uid, 0, 0); e != 0 {
			t.Fatal(e)
		}
	}
	set(uid)
	defer set(0)
	f()
}
