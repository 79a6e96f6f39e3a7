package postoffice

import (
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
	for _, strict := range []bool{false, true} {
		accepted := false
		start := func() (*cutfs.FS, func()) {
			base := cutfs.New()
			assert.Must(t, Init(base))
			disk := base.Restart(cutfs.KeepAll())
			p := assert.Get(Open(Config{FS: disk, Strict: strict}))(t)
			accepted = false
			return disk, func() {
				d, err := p.Submissions.NewDraft("smtp")
				if err == nil {
					_, err = io.WriteString(d, body)
				}
				var a Accepted
				if err == nil {
					a, err = d.CommitFrozen("Odd Cause")
				}
				if accepted = err == nil; accepted && !strings.HasSuffix(a.Name, ".odd-cause") || !accepted && !disk.Dead() {
					t.Errorf("accepted as %s, %v", a.Name, err)
				}
			}
		}
		everyCut(t, 10, start, func(what string, _ cutfs.Loss, after *cutfs.FS) { checkFrozen(t, what, after, accepted, len(body)) })
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
