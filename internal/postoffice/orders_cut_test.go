package postoffice

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"zmailer/internal/disk/cutfs"
	"zmailer/internal/run/assert"
)

// M41: whatever an order has been told it may act on is in its file, after a kill or a
// loss of power behind any operation; in a postoffice that had no orders/, too.
func TestEveryCutOfAnOrderKeepsWhatItNames(t *testing.T) {
	id := NewOperationID(time.Date(2026, 11, 21, 3, 15, 2, 0, time.UTC), "hold", 17)
	lines := []string{"verb hold\n\n", "S1A1\n", "S2A2\nS3A3\n"}
	// life gives an order, and what it may act on by then.
	life := func(p *PostOffice) (named string) {
		o, err := p.Operations.Create(id, []byte(lines[0]))
		if err != nil {
			return ""
		}
		named = lines[0]
		for _, l := range lines[1:] {
			if o.Append([]byte(l)) != nil {
				return named
			}
			named += l
		}
		_ = o.Close() // the disk of a dead process
		return named
	}
	cuts := 0
	for n := 0; ; n++ {
		for _, tear := range []bool{false, true} {
			base := cutfs.New()
			for _, d := range directories {
				if d.name == Orders {
					continue // made by an earlier version
				}
				assert.Must(t, base.Mkdir(d.name, d.mode))
			}
			assert.Must(t, base.SyncDir("."))
			disk := base.Restart(cutfs.KeepAll())
			p := assert.Get(Open(Config{FS: disk}))(t)
			if tear {
				disk.CutInside(n)
			} else {
				disk.CutAfter(n)
			}
			named := life(p)
			if !disk.Dead() && !tear {
				if named != strings.Join(lines, "") || cuts < 5 {
					t.Fatalf("uncut: %q after %d cuts", named, cuts)
				}
				return
			}
			cuts++
			for _, loss := range disk.Losses() {
				name := fmt.Sprintf("cut after %d (torn %v), %v", n, tear, loss)
				next, err := Open(Config{FS: disk.Restart(loss)})
				if err != nil {
					t.Fatalf("%s: %v", name, err)
				}
				if got := readOrderFile(next, id); !strings.HasPrefix(got, named) {
					t.Errorf("%s: got %q, want it to begin with %q", name, got, named)
				}
			}
		}
	}
}

func readOrderFile(p *PostOffice, id OperationID) string {
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
