package act

import (
	"testing"

	"zmailer/internal/admin/setup"
	"zmailer/internal/postoffice"
)

// Without a router nothing waits, and only a window of messages is remembered: a hundred
// thousand messages are as many stat calls.
func TestPaceWithoutARouterRemembersLittle(t *testing.T) {
	dir := t.TempDir()
	if err := setup.Make(dir); err != nil {
		t.Fatal(err)
	}
	po, err := postoffice.OpenDir(dir, 0, false)
	if err != nil {
		t.Fatal(err)
	}
	p := &pace{po: po, to: postoffice.Router, window: 4}
	for i := range 50 {
		p.gave(postoffice.SpoolID{Ino: uint64(i + 1), MTime: 1}, "deferred/x")
		if err := p.wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		if len(p.before) > 4 {
			t.Fatalf("%d of %d are remembered", len(p.before), p.given)
		}
	}
}
