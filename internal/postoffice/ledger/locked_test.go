package ledger

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"zmailer/internal/disk/durable"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/assert"
)

// Sec5: no other user can open the journal and hold its lock, which would keep every line
// out of the ledger: a new one is closed to others, and so is one that an earlier version
// has left.
func TestSec5JournalIsClosedToOthers(t *testing.T) {
	for what, left := range map[string]bool{"new": false, "left open": true} {
		t.Run(what, func(t *testing.T) {
			dir := t.TempDir()
			f, err := durable.NewOS(dir)
			assert.Must(t, err)
			defer f.Close()
			assert.Must(t, postoffice.Init(f))
			po, err := postoffice.Open(postoffice.Config{FS: f})
			assert.Must(t, err)
			file := filepath.Join(dir, journalName)
			if left {
				assert.Must(t, os.WriteFile(file, nil, 0o644))
			}
			j := New(po, Config{Role: "test"})
			j.Gone(postoffice.SpoolID{Ino: 1, MTime: time.Now().UnixNano()}, 1, "test")
			j.Close()
			info, err := os.Stat(file)
			if err != nil || info.Mode().Perm() != durable.LockMode || info.Size() == 0 {
				t.Errorf("got %v, %v, want lines in a file of mode %v", info, err, durable.LockMode)
			}
		})
	}
}
