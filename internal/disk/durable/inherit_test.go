package durable_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"zmailer/internal/run/assert"
)

// What root makes in a user's directory is the user's; what is there keeps its owner.
func TestRootMakesFilesForTheDirectorysOwner(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can give files away")
	}
	const uid = 65534
	f, dir := newOS(t)
	f.Inherit()
	assert.Must(t, os.Chown(dir, uid, uid))
	assert.Must(t, os.WriteFile(filepath.Join(dir, "old"), nil, 0o600))
	assert.Must(t, f.Mkdir("sub", 0o755|fs.ModeSticky))
	lock := assert.Get(f.Lock("lock", []byte("x")))(t)
	assert.NoError(t, lock.Abandon())
	for _, name := range []string{"sub/new", "old"} {
		h := assert.Get(f.Open(name, os.O_WRONLY|os.O_CREATE, 0o600))(t)
		assert.NoError(t, h.Close())
	}
	for name, want := range map[string]uint32{"sub": uid, "lock": uid, "sub/new": uid, "old": 0} {
		if info, err := f.Stat(name); err != nil || info.UID != want {
			t.Errorf("%s: got uid %d, %v, want %d", name, info.UID, err, want)
		}
	}
	if info, err := f.Stat("sub"); err != nil || info.Mode&(fs.ModePerm|fs.ModeSticky) != 0o755|fs.ModeSticky {
		t.Errorf("got mode %v, %v", info.Mode, err)
	}
	if _, err := f.Open("old", os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600); !os.IsExist(err) {
		t.Errorf("old, made anew: got %v, want that it exists", err)
	}
}
