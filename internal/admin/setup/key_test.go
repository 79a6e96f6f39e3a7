package setup

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"zmailer/internal/run/assert"
)

// Sec1: the daemons' user owns the directory of keys. A link that it puts under the name of
// a new key does not make root give away the file that the link points to.
func TestSec1LinkUnderTheNameOfAKeyIsNotGivenAway(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("skipped: root alone gives files away")
	}
	dir := t.TempDir()
	postoffice, target, key := filepath.Join(dir, "postoffice"), filepath.Join(dir, "shadow"), filepath.Join(dir, "key")
	for _, err := range []error{os.Mkdir(postoffice, 0o755), os.Chown(postoffice, 4242, 4242), os.WriteFile(target, nil, 0o600)} {
		assert.Must(t, err)
	}
	f, err := os.OpenFile(key, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	assert.Must(t, err)
	defer f.Close()
	for _, err := range []error{os.Rename(key, key+".moved"), os.Symlink(target, key), giveToOwner(f, postoffice)} {
		assert.Must(t, err)
	}
	assert.Must(t, os.Mkdir(filepath.Join(dir, "keys"), 0o700))
	assert.Must(t, os.Symlink(postoffice, filepath.Join(dir, "linked")))
	if err := giveDirToOwner(filepath.Join(dir, "linked"), postoffice); err == nil {
		t.Error("a directory was given away through a link")
	}
	assert.NoError(t, giveDirToOwner(filepath.Join(dir, "keys"), postoffice))
	for name, want := range map[string]uint32{"shadow": 0, "key.moved": 4242, "keys": 4242} {
		info, err := os.Lstat(filepath.Join(dir, name))
		assert.Must(t, err)
		assert.Equal(t, info.Sys().(*syscall.Stat_t).Uid, want, "owner of %s", name)
	}
}
