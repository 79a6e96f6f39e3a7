package mailbox

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"zmailer/internal/disk/durable"
	"zmailer/internal/disk/faultfs"
	"zmailer/internal/run/assert"
)

// Dur3: a delivery that was interrupted counts as done only when the name of its file is on the
// disk, and a new Maildir when its directories are.
func TestFailedSyncOfAMaildirIsNoDelivery(t *testing.T) {
	settle := func(box *faultfs.FS) error {
		_, err := new(Mailbox).settle(below{box, "."}, "1.a.host", nil)
		return err
	}
	for name, tt := range map[string]struct {
		dir, there string
		do         func(box *faultfs.FS) error
	}{
		"delivered":           {"new", "new/1.a.host", settle},
		"delivered and read":  {"cur", "cur/1.a.host:2,S", settle},
		"directories are new": {".", "", func(box *faultfs.FS) error { return makeSubs(box, 0o700) }},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			disk := assert.Get(durable.NewOS(dir))(t)
			t.Cleanup(func() { _ = disk.Close() })
			if tt.there != "" {
				assert.Must(t, makeSubs(disk, 0o700))
				assert.Must(t, os.WriteFile(filepath.Join(dir, tt.there), []byte("x"), 0o600))
			}
			box := faultfs.New(disk)
			rule := box.Fail(faultfs.SyncDir, tt.dir, unix.EIO, faultfs.Always)
			if err := tt.do(box); !errors.Is(err, unix.EIO) || rule.Hits() != 1 {
				t.Errorf("got %v after %d syncs, want EIO", err, rule.Hits())
			}
		})
	}
}
