package confine

import (
	"os"
	"path/filepath"
	"testing"

	"zmailer/internal/run/assert"
	"zmailer/internal/run/config"
)

// METRICS=unix is no word to the file opener: the right to make a socket in the postoffice, and to
// remove it, is one to remove all.
func TestWhatWritesNothingMakesNoSocket(t *testing.T) {
	file := filepath.Join(t.TempDir(), "zmailer.conf")
	assert.Must(t, os.WriteFile(file, []byte("POSTOFFICE="+t.TempDir()+"\nMETRICS=unix\n"), 0o600))
	c := assert.Get(config.Load(file))(t)
	for program, want := range map[string]bool{"router": true, "scheduler": true, "opener": false} {
		assert.Equal(t, PlanFor(program, c).Socket, want, program)
	}
}

// To become the user that one is says nothing of a right; a site may have DAEMONUSER=nobody.
func TestAnotherUserIsNoneOfOnesOwn(t *testing.T) {
	for _, uid := range []int{0, 1000, 65533, 65534} {
		if got := another(uid); got == uid || got == 0 {
			t.Errorf("uid %d: got %d", uid, got)
		}
	}
}
