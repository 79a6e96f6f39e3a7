package install

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"zmailer/internal/run/assert"
)

func read(t *testing.T, file string) string {
	t.Helper()
	text := assert.Get(os.ReadFile(file))(t)
	return string(text)
}

// exitOf runs a program that may fail.
func exitOf(argv ...string) (string, error) {
	out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput()
	return string(out), err
}

// inPlace writes units whose programs are where they were installed, below root, for
// systemd-analyze, which looks whether they are there.
func inPlace(t *testing.T, root string, units []string) []string {
	t.Helper()
	dir, out := t.TempDir(), make([]string, 0, len(units))
	for _, unit := range units {
		text := strings.ReplaceAll(read(t, unit), "/usr/libexec/zmailer/", filepath.Join(root, "usr/libexec/zmailer")+"/")
		file := filepath.Join(dir, filepath.Base(unit))
		assert.Must(t, os.WriteFile(file, []byte(text), 0o644))
		out = append(out, file)
	}
	return out
}
