package check

import (
	"os"
	"slices"
	"testing"

	"zmailer/internal/disk/durable"
	"zmailer/internal/postoffice"
	"zmailer/internal/run/assert"
	"zmailer/internal/run/confine"
)

// Sec9: the self check of the sandbox tries every directory that a postoffice has.
func TestSec9EveryDirectoryIsTried(t *testing.T) {
	dir := t.TempDir()
	f, err := durable.NewOS(dir)
	assert.Must(t, err)
	defer f.Close()
	assert.Must(t, postoffice.Init(f))
	entries, err := os.ReadDir(dir)
	assert.Must(t, err)
	for _, e := range entries {
		if _, _, ok := postoffice.Mode(e.Name()); ok && !slices.Contains(confine.Directories(), e.Name()) {
			t.Errorf("%s/ is not tried", e.Name())
		}
	}
}
