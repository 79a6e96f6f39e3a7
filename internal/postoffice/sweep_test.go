package postoffice

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"zmailer/internal/run/assert"
)

// K4: what dead submitters left unfinished is removed when it is old; what somebody
// writes, prepared, accepted or named otherwise stays.
func TestOldDraftsOfTheDeadAreSwept(t *testing.T) {
	p, dir := newPostOffice(t, 0)
	old := time.Now().Add(-2 * time.Hour)
	file := func(name string, mode os.FileMode, written time.Time) {
		t.Helper()
		path := filepath.Join(dir, Public, name)
		assert.Must(t, os.WriteFile(path, []byte("comment oct"), mode))
		assert.Must(t, os.Chtimes(path, written, written))
	}
	file("smtp.77.dn0kpsb1upkv.1i", 0o600, old)
	file("submit.78.dn0kpsb1upkv.1", 0o600, old)
	keep := []string{"smtp.77.dn0kpsb1upkv.2", "submit.78.dn0kpsb1upkv.2", "report.79.dn0kpsb1upkv.1", "foreign", "a.b.c.d"}
	file(keep[0], 0o600, time.Now())
	file(keep[1], 0o700, old)
	for _, name := range keep[2:] {
		file(name, 0o600, old)
	}
	live := assert.Get(p.Submissions.NewDraft("live"))(t)
	assert.Must(t, os.Chtimes(filepath.Join(dir, live.name), old, old))
	done := assert.Get(p.Submissions.SweepDrafts(time.Now()))(t)
	for _, r := range done {
		if r.Action != Swept {
			t.Errorf("got %+v", r)
		}
	}
	assert.Equal(t, len(done), 2, "files swept")
	for _, name := range append(keep, live.Name()) {
		if _, err := os.Stat(filepath.Join(dir, Public, name)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// K4 K9: another program's file that no one finishes is put away, never removed; one
// that somebody locks, has touched or renamed, has accepted, or that is ours, stays.
func TestAbandonedFilesOfOtherProgramsArePutAway(t *testing.T) {
	p, dir := newPostOffice(t, 0)
	file := func(name string, mode os.FileMode, age time.Duration) {
		t.Helper()
		path := filepath.Join(dir, Public, name)
		assert.Must(t, os.WriteFile(path, []byte("to bond\n"), mode))
		written := time.Now().Add(-age)
		assert.Must(t, os.Chtimes(path, written, written))
	}
	const week = DefaultPublicKeep
	file("theirs", 0o600, 0)
	file("locked", 0o600, 0)
	file("accepted", 0o700, 0)
	file("smtp.77.dn0kpsb1upkv.1i", 0o600, 0)
	file("report.79.dn0kpsb1upkv.1", 0o600, 0)
	file("clock-set-back", 0o600, -2*week)
	assert.Must(t, os.Mkdir(filepath.Join(dir, Public, "directory"), 0o700))
	writer := assert.Get(p.fs.Open(Public+"/locked", os.O_RDWR, 0))(t)
	defer writer.Close()
	if ok, err := writer.TryLock(); !ok || err != nil {
		t.Fatal(ok, err)
	}
	sweep := func(now time.Time, keep time.Duration) []Recovered {
		t.Helper()
		done := assert.Get(p.Submissions.SweepForeign(now, keep))(t)
		return done
	}
	now := time.Now()
	if done := sweep(now.Add(week-time.Hour), week); len(done) != 0 {
		t.Errorf("before its time: got %+v", done)
	}
	if done := sweep(now.Add(100*week), 0); len(done) != 0 {
		t.Errorf("for ever: got %+v", done)
	}
	file("moved-here", 0o600, 10*week)
	if done := sweep(now.Add(week-time.Hour), week); len(done) != 0 {
		t.Errorf("old content, new name: got %+v", done)
	}
	assert.Must(t, os.Remove(filepath.Join(dir, Public, "moved-here")))
	done := sweep(now.Add(week+time.Hour), week)
	if len(done) != 1 || done[0].Action != Quarantined || done[0].Name != "quarantine/public.theirs.abandoned" {
		t.Errorf("got %+v, want theirs put away", done)
	}
	if b, err := os.ReadFile(filepath.Join(dir, Quarantine, "public.theirs.abandoned")); err != nil || string(b) != "to bond\n" {
		t.Errorf("put away: got %q, %v", b, err)
	}
	if list, err := os.ReadDir(filepath.Join(dir, Public)); err != nil || len(list) != 6 {
		t.Errorf("public/: got %v, %v, want the other six", list, err)
	}
}
