// Package lastgoodtest shows the alarms that a package under test raises and ends, in a directory of
// its own. It is for tests.
//
// Nothing of it survives the test. Diagnostics: what differs fails the test.
package lastgoodtest

import (
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"zmailer/internal/disk/durable"
	"zmailer/internal/disk/lastgood"
	"zmailer/internal/run/assert"
)

// Alarms are those of one program. Its Store is a config.Keeper: an outage is an alarm from its first
// failure on.
type Alarms struct {
	*lastgood.Store
	disk durable.FS
}

// Watch makes the directory.
func Watch(t testing.TB) *Alarms {
	t.Helper()
	dir := t.TempDir()
	store := assert.Get(lastgood.Open(dir, "smtpserver", slog.New(slog.DiscardHandler)))(t)
	disk := assert.Get(durable.NewOS(dir))(t)
	t.Cleanup(func() { _, _ = store.Close(), disk.Close() })
	return &Alarms{store, disk}
}

// Subjects returns what the alarms are about, sorted.
func (a *Alarms) Subjects() (list []string) {
	for _, f := range lastgood.Findings(a.disk, time.Now()) {
		list = append(list, f.Path)
	}
	slices.Sort(list)
	return list
}

// Expect checks that there are alarms about these subjects alone; those about servers have a reason
// and a remedy.
func (a *Alarms) Expect(t testing.TB, when string, subjects ...string) {
	t.Helper()
	slices.Sort(subjects)
	assert.Equal(t, strings.Join(a.Subjects(), " "), strings.Join(subjects, " "), "alarms, %s", when)
	for _, f := range lastgood.Findings(a.disk, time.Now()) {
		if f.Away && (f.Reason == "" || f.Remedy == "" || f.Since.IsZero()) {
			t.Errorf("%s: an alarm lacks its reason, remedy or time: %+v", when, f)
		}
	}
}
