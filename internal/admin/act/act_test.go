package act

import (
	"testing"
	"time"

	"zmailer/internal/admin/setup"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/assert"
)

// Without a router nothing waits, and only a window of messages is remembered: a hundred
// thousand messages are as many stat calls.
func TestPaceWithoutARouterRemembersLittle(t *testing.T) {
	dir := t.TempDir()
	assert.Must(t, setup.Make(dir))
	po, err := postoffice.OpenDir(dir, 0, false)
	assert.Must(t, err)
	p := &pace{po: po, to: postoffice.Router, window: 4}
	for i := range 50 {
		p.gave(postoffice.SpoolID{Ino: uint64(i + 1), MTime: 1}, "deferred/x")
		assert.Must(t, p.wait(t.Context()))
		if len(p.before) > 4 {
			t.Fatalf("%d of %d are remembered", len(p.before), p.given)
		}
	}
}

// Ends of holds.
func TestHoldsEndWhenTheyAreMeantTo(t *testing.T) {
	now := time.Date(2026, 11, 21, 3, 0, 0, 0, time.Local)
	for text, want := range map[string]time.Time{
		"": {}, "2h": now.Add(2 * time.Hour), "1d12h": now.Add(36 * time.Hour), "2026-11-22": time.Date(2026, 11, 22, 0, 0, 0, 0, time.Local),
		"2026-11-21T06:00": now.Add(3 * time.Hour), "2026-11-21 06:00:00": now.Add(3 * time.Hour),
	} {
		if got, err := ParseUntil(text, now); err != nil || !got.Equal(want) {
			t.Errorf("%q: got %v, %v, want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"soon", "2h later", "2026-11-21", "2026-13-01"} {
		if got, err := ParseUntil(text, now); err == nil {
			t.Errorf("%q: got %v, want an error", text, got)
		}
	}
}
