package postoffice

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// K4: what dead submitters left unfinished is removed when it is old; what somebody
// writes, prepared, accepted or named otherwise stays.
func TestOldDraftsOfTheDeadAreSwept(t *testing.T) {
	p, dir := newPostOffice(t, 0)
	old := time.Now().Add(-2 * time.Hour)
	file := func(name string, mode os.FileMode, written time.Time) {
		t.Helper()
		path := filepath.Join(dir, Public, name)
		if err := os.WriteFile(path, []byte("comment oct"), mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, written, written); err != nil {
			t.Fatal(err)
		}
	}
	file("smtp.77.dn0kpsb1upkv.1i", 0o600, old)
	file("submit.78.dn0kpsb1upkv.1", 0o600, old)
	keep := []string{"smtp.77.dn0kpsb1upkv.2", "submit.78.dn0kpsb1upkv.2", "report.79.dn0kpsb1upkv.1", "foreign", "a.b.c.d"}
	file(keep[0], 0o600, time.Now())
	file(keep[1], 0o700, old)
	for _, name := range keep[2:] {
		file(name, 0o600, old)
	}
	live, err := p.NewDraft("live")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(filepath.Join(dir, live.name), old, old); err != nil {
		t.Fatal(err)
	}
	done, err := p.SweepDrafts(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range done {
		if r.Action != Swept {
			t.Errorf("got %+v", r)
		}
	}
	if len(done) != 2 {
		t.Errorf("%d files were swept, want 2: %+v", len(done), done)
	}
	for _, name := range append(keep, live.Name()) {
		if _, err := os.Stat(filepath.Join(dir, Public, name)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
