package ledger

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"zmailer/internal/disk/durable"
	"zmailer/internal/postoffice"
)

// Sec5: no other user can open the journal and hold its lock, which would keep every line
// out of the ledger: a new one is closed to others, and so is one that an earlier version
// has left.
func TestSec5JournalIsClosedToOthers(t *testing.T) {
	for what, left := range map[string]bool{"new": false, "left open": true} {
		t.Run(what, func(t *testing.T) {
			dir := t.TempDir()
			f, err := durable.NewOS(dir)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			if err := postoffice.Init(f); err != nil {
				t.Fatal(err)
			}
			po, err := postoffice.Open(postoffice.Config{FS: f})
			if err != nil {
				t.Fatal(err)
			}
			file := filepath.Join(dir, journalName)
			if left {
				if err := os.WriteFile(file, nil, 0o644); err != nil {
					t.Fatal(err)
				}
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
