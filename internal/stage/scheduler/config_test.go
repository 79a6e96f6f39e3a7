package scheduler

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"zmailer/internal/run/assert"
	"zmailer/internal/run/config"
)

// M30: a file that goes away while the scheduler runs is not replaced by the built-in one.
func TestMissingFileIsRefusedAtAReload(t *testing.T) {
	main := filepath.Join(t.TempDir(), "zmailer.conf")
	file := filepath.Join(filepath.Dir(main), "scheduler.conf")
	for name, text := range map[string]string{main: "HOSTNAME=mta.example\nPOSTOFFICE=/nowhere\n", file: "*/*\n\tcommand=true\n"} {
		assert.Must(t, os.WriteFile(name, []byte(text), 0o600))
	}
	c, err := config.Load(main)
	assert.Must(t, err)
	cfg, err := ConfigFrom(c)
	assert.Must(t, err)
	read := Reread(c, cfg.Conf, nil)
	if _, err := read(false); err != nil {
		t.Errorf("with the file: %v", err)
	}
	assert.Must(t, os.Remove(file))
	if next, err := read(false); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("without the file: got %+v, %v", next, err)
	}
}
