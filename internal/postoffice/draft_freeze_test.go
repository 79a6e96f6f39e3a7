package postoffice

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"zmailer/internal/disk/cutfs"
	"zmailer/internal/run/assert"
)

// M13: a message that was frozen on its way in is in freezer/ or was not accepted,
// wherever the power goes, and recovery never takes it to router/.
func TestEveryCutOfAFrozenDraftKeepsItFromTheRouter(t *testing.T) {
	const body = "from <a@example.net>\nto <b@example.org>\nenv-end\nSubject: x\n\nhi\n"
	life := func(p *PostOffice) (accepted bool) {
		d, err := p.Submissions.NewDraft("smtp")
		if err != nil {
			return false
		}
		if _, err := io.WriteString(d, body); err != nil {
			return false
		}
		a, err := d.CommitFrozen("Odd Cause")
		if err == nil && !strings.HasSuffix(a.Name, ".odd-cause") {
			t.Errorf("accepted as %s", a.Name)
		}
		return err == nil
	}
	cuts := 0
	for _, strict := range []bool{false, true} {
		for n := 0; ; n++ {
			done := false
			for _, tear := range []bool{false, true} {
				base := cutfs.New()
				assert.Must(t, Init(base))
				disk := base.Restart(cutfs.KeepAll())
				p := assert.Get(Open(Config{FS: disk, Strict: strict}))(t)
				if tear {
					disk.CutInside(n)
				} else {
					disk.CutAfter(n)
				}
				accepted := life(p)
				if !disk.Dead() && !tear {
					if !accepted {
						t.Fatalf("uncut: not accepted after %d cuts", cuts)
					}
					done = true
				}
				cuts++
				for _, loss := range disk.Losses() {
					checkFrozen(t, fmt.Sprintf("cut after %d (torn %v), %v", n, tear, loss), disk.Restart(loss), accepted, len(body))
				}
			}
			if done {
				break
			}
		}
	}
	if cuts < 20 {
		t.Errorf("%d cuts only", cuts)
	}
}

// checkFrozen has a router recover, and the sweep after an hour.
func checkFrozen(t *testing.T, name string, disk *cutfs.FS, accepted bool, size int) {
	t.Helper()
	p, err := Open(Config{FS: disk})
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	if _, err := p.Router.Recover(RouterRecovery{Complete: func([]byte) bool { return true }}); err != nil {
		t.Errorf("%s: %v", name, err)
	}
	if _, err := p.Submissions.SweepDrafts(time.Now().Add(2 * time.Hour)); err != nil {
		t.Errorf("%s: %v", name, err)
	}
	held := 0
	for _, dir := range []string{Public, Router, Freezer} {
		entries := assert.Get(disk.ReadDir(dir))(t)
		for _, e := range entries {
			if dir != Freezer {
				t.Errorf("%s: %s/%s is there", name, dir, e.Name)
				continue
			}
			info, err := disk.Stat(dir + "/" + e.Name)
			if err != nil || info.Size != int64(size+octetsLine) {
				t.Errorf("%s: %s: %d bytes, %v", name, e.Name, info.Size, err)
			}
			held++
		}
	}
	if accepted && held != 1 {
		t.Errorf("%s: accepted, and %d are in freezer/", name, held)
	}
}

// M14: the file is whole when it has its name, and nothing else is left.
func TestStartOfAHostIsAskedForByAFileInTransport(t *testing.T) {
	p, dir := newPostOffice(t, 0)
	assert.Must(t, p.Queue.AskStart("site.example"))
	entries, err := os.ReadDir(filepath.Join(dir, Transport))
	if err != nil || len(entries) != 1 {
		t.Fatalf("transport/: got %v, %v, want one file", entries, err)
	}
	b, err := os.ReadFile(filepath.Join(dir, Transport, entries[0].Name()))
	if n, ok := ParseName(entries[0].Name()); !ok || n.Owner != 0 || string(b) != "T site.example\n" || err != nil {
		t.Errorf("%s: got %q, %v", entries[0].Name(), b, err)
	}
	if left, err := os.ReadDir(filepath.Join(dir, Public)); err != nil || len(left) > 0 {
		t.Errorf("public/: got %v, %v", left, err)
	}
	for _, bad := range []string{"", "a b", "a\nT b"} {
		if err := p.Queue.AskStart(bad); err == nil {
			t.Errorf("%q: got no error", bad)
		}
	}
}
