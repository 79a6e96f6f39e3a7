package scheduler

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"zmailer/internal/run/config"
)

// M30: a file that goes away while the scheduler runs is not replaced by the built-in one.
func TestMissingFileIsRefusedAtAReload(t *testing.T) {
	main := filepath.Join(t.TempDir(), "zmailer.conf")
	file := filepath.Join(filepath.Dir(main), "scheduler.conf")
	for name, text := range map[string]string{main: "HOSTNAME=mta.example\nPOSTOFFICE=/nowhere\n", file: "*/*\n\tcommand=true\n"} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c, err := config.Load(main)
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := ConfigFrom(c)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := cfg.Reread.Read(); err != nil {
		t.Errorf("with the file: %v", err)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if next, err := cfg.Reread.Read(); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("without the file: got %+v, %v", next, err)
	}
}
