package postoffice

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"zmailer/internal/run/assert"
)

// M12: an old copy goes; an only copy, and whatever looks like neither, never.
func TestCleanupDropsOldCopiesAlone(t *testing.T) {
	p, dir := newPostOffice(t, 0)
	a := submit(t, p, "from <a@b.example>\nto <c@d.example>\nenv-end\n\nx\n")
	write := func(name string) {
		t.Helper()
		assert.Must(t, os.WriteFile(filepath.Join(dir, Postman, name), []byte("x"), 0o600))
	}
	keeps := []string{"4711", "4711.renumbered", "_header", "x4711_header", "04711_header", "4711_", "reason.4711", "4712-5"}
	for _, name := range append(keeps, "4713_header", "4714_loop") {
		write(name)
	}
	// A copy is a link of a message that may still be in the queue.
	assert.Must(t, p.FS().Link(a.Name, Postman+"/4715_undeliverable"))
	assert.Must(t, os.Mkdir(filepath.Join(dir, Postman, "4716_header"), 0o700))
	keeps = append(keeps, "4716_header")
	for _, step := range []struct {
		name        string
		after, keep time.Duration
		dry         bool
		want        []string
	}{
		{"young", time.Hour, 2 * time.Hour, false, nil},
		{"for ever", 1000 * time.Hour, 0, false, nil},
		{"dry", 3 * time.Hour, 2 * time.Hour, true, []string{"4713_header", "4714_loop", "4715_undeliverable"}},
		{"old", 3 * time.Hour, 2 * time.Hour, false, []string{"4713_header", "4714_loop", "4715_undeliverable"}},
		{"once more", 3 * time.Hour, 2 * time.Hour, false, nil},
	} {
		done := assert.Get(p.Aside.SweepCopies(time.Now().Add(step.after), step.keep, step.dry))(t)
		var got []string
		for _, r := range done {
			got = append(got, filepath.Base(r.Name))
		}
		assert.Same(t, got, step.want, "%s: dropped", step.name)
	}
	entries := assert.Get(os.ReadDir(filepath.Join(dir, Postman)))(t)
	var left []string
	for _, e := range entries {
		left = append(left, e.Name())
	}
	slices.Sort(keeps)
	assert.Same(t, left, keeps, "left")
	if _, err := p.FS().Stat(a.Name); err != nil {
		t.Errorf("the message that it was a copy of: %v", err)
	}
}
