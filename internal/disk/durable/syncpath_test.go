package durable_test

import (
	"os"
	"path/filepath"
	"testing"

	"zmailer/internal/disk/durable"
	"zmailer/internal/disk/loopdisk"
	"zmailer/internal/run/assert"
)

// Dur3: SyncPath ends at the mount point, and reports a directory that is not there.
func TestDur3PathIsSyncedUpToTheMountPoint(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	if err := durable.SyncPath(dir); err == nil {
		t.Error("a missing directory: got no error")
	}
	assert.Must(t, os.MkdirAll(dir, 0o755))
	assert.NoError(t, durable.SyncPath(dir))
}

// Dur3: what SyncPath has returned for is there after the disk stops at once. ext4's
// shutdown drops what is not in the journal.
func TestDur3PathIsThereAfterAPowerLoss(t *testing.T) {
	disk := loopdisk.New(t, 64<<20, "mkfs.ext4 -q -F")
	disk.Mount(t, "commit=1000")
	dir := filepath.Join(disk.Dir, "var", "spool", "postoffice")
	assert.Must(t, os.MkdirAll(dir, 0o755))
	assert.Must(t, durable.SyncPath(dir))
	disk.Shutdown(t)
	disk.Unmount(t)
	disk.Mount(t, "")
	if _, err := os.Stat(dir); err != nil {
		t.Error(err)
	}
}
