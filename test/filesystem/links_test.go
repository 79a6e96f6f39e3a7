package filesystem

import (
	"context"
	"testing"
	"time"

	"zmailer/internal/run/assert"
	"zmailer/test/fusefs"
	"zmailer/test/load"
	"zmailer/test/suite"
)

// C7: on a file system without RENAME_NOREPLACE messages of every kind arrive once, also when
// all programs are killed in the middle; nothing is left, and nothing goes to quarantine/.
func TestC7MailArrivesOnceWhereNamesAreLinked(t *testing.T) {
	if why := fusefs.Supported(); why != "" {
		t.Skip(why)
	}
	s := &suite.Suite{Bin: bin, Dir: t.TempDir(), Settings: map[string]string{"ROUTERPOLL": "1s", "SCHEDULERPOLL": "1s"}}
	l := assert.Get(load.Prepare(s))(t)
	t.Cleanup(l.Close)
	assert.Must(t, s.Init())
	mount(t, s, fusefs.Faults{NoRenameFlags: true})
	assert.Must(t, s.Start())
	t.Cleanup(s.Kill)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	for round := range 3 {
		assert.Must(t, l.Round(ctx, round))
		if round < 2 {
			s.Kill()
			assert.Must(t, s.Start())
		}
	}
	if _, err := l.Drain(ctx); err != nil {
		t.Fatalf("%v\n%s", err, s.Log())
	}
	audit := assert.Get(l.Audit())(t)
	t.Log(audit)
	if audit.Bad() || audit.Accepted == 0 {
		t.Error(s.Log())
	}
	assert.Equal(t, s.Count("disbelieved"), 0, "quarantined")
	assert.Must(t, s.Stop())
}
