package postoffice

import (
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"zmailer/internal/disk/cutfs"
	"zmailer/internal/run/assert"
)

// M41: whatever an operation may act on is in its file, after a kill or a
// loss of power behind any operation; in a postoffice that had no orders/, too.
func TestEveryCutOfAnOperationKeepsWhatItNames(t *testing.T) {
	id := NewOperationID(time.Date(2026, 11, 21, 3, 15, 2, 0, time.UTC), "hold", 17)
	lines := []string{"verb hold\n\n", "S1A1\n", "S2A2\nS3A3\n"}
	named := "" // what the order may act on by then
	start := func() (*cutfs.FS, func()) {
		base := cutfs.New()
		for _, d := range directories {
			if d.name != Orders { // as an earlier version made it
				assert.Must(t, base.Mkdir(d.name, d.mode))
			}
		}
		assert.Must(t, base.SyncDir("."))
		disk := base.Restart(cutfs.KeepAll())
		p := assert.Get(Open(Config{FS: disk}))(t)
		named = ""
		return disk, func() {
			o, err := p.Operations.Create(id, []byte(lines[0]))
			for i := 0; err == nil && i < len(lines); i++ {
				if i > 0 {
					err = o.Append([]byte(lines[i]))
				}
				if err == nil {
					named += lines[i]
				}
			}
			if err != nil && !disk.Dead() {
				t.Fatalf("uncut: %v", err)
			}
		}
	}
	everyCut(t, 5, start, func(what string, _ cutfs.Loss, after *cutfs.FS) {
		next := assert.Get(Open(Config{FS: after}))(t)
		if got := readOperation(next, id); !strings.HasPrefix(got, named) {
			t.Errorf("%s: got %q, want it to begin with %q", what, got, named)
		}
	})
}

func readOperation(p *PostOffice, id OperationID) string {
	f, err := p.Operations.Open(id)
	if err != nil {
		return ""
	}
	defer f.Close()
	b, err := io.ReadAll(f)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err.Error()
	}
	return string(b)
}
