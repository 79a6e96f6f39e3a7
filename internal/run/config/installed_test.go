package config

import (
	"os"
	"path/filepath"
	"testing"

	"zmailer/internal/run/assert"
)

func TestInstalledProgramsReadTheMachinesConfiguration(t *testing.T) {
	dir := t.TempDir()
	machine, own := filepath.Join(dir, "machine.conf"), filepath.Join(dir, "own.conf")
	for file, text := range map[string]string{machine: "POSTOFFICE=/machine\n", own: "POSTOFFICE=/own\n"} {
		assert.Must(t, os.WriteFile(file, []byte(text), 0o600))
	}
	for _, name := range []string{"ZCONFIG", "POSTOFFICE"} {
		t.Setenv(name, "") // restores it at the end
		os.Unsetenv(name)
	}
	t.Cleanup(func() { installed = "" })
	builtIn := (&Config{}).PostOffice()
	for name, tt := range map[string]struct {
		installed string
		args      []string
		want      string
	}{
		"not installed":             {"", nil, builtIn},
		"installed":                 {machine, nil, "/machine"},
		"its file is gone":          {filepath.Join(dir, "none"), nil, builtIn},
		"another one is named":      {machine, []string{"--config", own}, "/own"},
		"the built-in one is named": {machine, []string{"--config", ""}, builtIn},
		"another postoffice":        {machine, []string{"--postoffice", "/mine"}, "/mine"},
	} {
		t.Run(name, func(t *testing.T) {
			installed = tt.installed
			c, code, out := runCLI(t, tt.args...)
			if code != 0 || c.PostOffice() != tt.want {
				t.Errorf("got %d %v, want %s: %s", code, c, tt.want, out)
			}
		})
	}
	t.Setenv("ZCONFIG", "")
	installed = machine
	if c, code, out := runCLI(t); code != 0 || c.File != "" {
		t.Errorf("an empty ZCONFIG: got %d %v: %s", code, c, out)
	}
}
