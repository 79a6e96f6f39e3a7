package config

import (
	"os"
	"path/filepath"
	"testing"

	"zmailer/internal/run/assert"
)

// Op11: what has changed since a daemon was started is named.
func TestOp11ChangedSettingsAreNamed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "zmailer.conf")
	assert.Must(t, os.WriteFile(path, []byte("HOSTNAME=a.example\nMAXSIZE=5M\n# x\nSYNC=strict\n"), 0o644))
	c := assert.Get(Load(path))(t)
	assert.Same(t, c.Changed([]byte("HOSTNAME=a.example\nMAXSIZE=6M\nMAXRCPT=7\nSYNC=strict\n")), []string{"MAXSIZE", "MAXRCPT"})
	if names := c.Changed([]byte("SYNC=\"strict\"\nMAXSIZE=5M # y\nHOSTNAME=a.example\n")); len(names) != 0 {
		t.Errorf("got %q", names)
	}
}
