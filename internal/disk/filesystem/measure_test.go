package filesystem

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"zmailer/internal/run/assert"
)

// C7: a file system that has all is found to have it, and nothing is left in the directory but
// what others have put there. What a killed process has left goes.
func TestC7MeasurementFindsAllAndLeavesNothing(t *testing.T) {
	for name, dir := range map[string]string{"temporary": t.TempDir(), "tmpfs": "/dev/shm"} {
		t.Run(name, func(t *testing.T) {
			top, err := os.MkdirTemp(dir, "measure")
			if err != nil {
				t.Skip(err)
			}
			t.Cleanup(func() { os.RemoveAll(top) })
			left := filepath.Join(top, ".probe.00112233445566778899aabbccddeeff")
			mine := filepath.Join(top, ".probe.mine")
			old := time.Now().Add(-time.Hour)
			for _, dir := range []string{left, mine} {
				assert.Must(t, os.Mkdir(dir, 0o700))
				assert.Must(t, os.WriteFile(filepath.Join(dir, "mode"), nil, 0o600))
				assert.Must(t, os.Chtimes(dir, old, old))
			}
			list := assert.Get(Measure(top, "none", "."))(t)
			for _, p := range list {
				if p.IsMissing() || p.Name == "rename-new" && !p.Has || p.Tried == "" || p.Meaning == "" {
					t.Errorf("%+v", p)
				}
			}
			entries := assert.Get(os.ReadDir(top))(t)
			if len(entries) != 1 || entries[0].Name() != ".probe.mine" {
				t.Errorf("left: %v", entries)
			}
		})
	}
}

// C7: where nothing can be made nothing is reported.
func TestC7NothingIsMeasuredWithoutADirectory(t *testing.T) {
	list, err := Measure(t.TempDir(), "none", "other")
	if len(list) != 0 || err == nil {
		t.Errorf("got %v, %v", list, err)
	}
}
