package config

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"zmailer/internal/run/assert"
)

func TestDefaultFileNamesEveryVariableWithItsDefault(t *testing.T) {
	lines := map[string]string{}
	for _, m := range regexp.MustCompile(`(?m)^#?([A-Z_]+)=(.*)$`).FindAllStringSubmatch(string(Default("zmailer.conf")), -1) {
		lines[m[1]] = m[2]
	}
	for _, v := range Variables() {
		want := v.Default
		if want != "" {
			want = quote(want)
		}
		if got, ok := lines[v.Name]; !ok || got != want {
			t.Errorf("%s: got %q, want %q", v.Name, got, want)
		}
		if v.check != nil && v.Default != "" {
			if err := v.check(v.Default); err != nil {
				t.Errorf("%s: its default %q is refused: %v", v.Name, v.Default, err)
			}
		}
		if !strings.HasSuffix(v.Meaning, ".") {
			t.Errorf("%s: its meaning is no sentence: %q", v.Name, v.Meaning)
		}
		delete(lines, v.Name)
	}
	for name := range lines {
		t.Errorf("%s is in the file and not in Variables", name)
	}
}

func TestProgramsRunWithoutConfiguration(t *testing.T) {
	c := assert.Get(Load(""))(t)
	assert.Equal(t, c.Path("routes"), "", "path")
	for _, file := range Files() {
		content, from, err := c.Read(file)
		if err != nil || len(content) == 0 || from != "built-in "+file {
			t.Errorf("%s: got %d bytes from %q, %v", file, len(content), from, err)
		}
	}
	assert.Equal(t, c.PostOffice(), DefaultPostOffice, "postoffice")
	if got, err := c.Hostname(); got == "" || err != nil {
		t.Errorf("hostname: got %q, %v", got, err)
	}
	if got := Default("passwd"); got != nil {
		t.Errorf("unknown file: got %q", got)
	}
}

func TestFileBesideConfigurationComesFirst(t *testing.T) {
	c := assert.Get(loadText(t, ""))(t)
	assert.Must(t, os.WriteFile(c.Path("routes"), []byte("mine"), 0o600))
	content, from, err := c.Read("routes")
	if string(content) != "mine" || from != c.Path("routes") || err != nil {
		t.Errorf("got %q from %q, %v", content, from, err)
	}
	if _, from, err := c.Read("aliases"); from != "built-in aliases" || err != nil {
		t.Errorf("missing file: got %q, %v", from, err)
	}
	assert.Must(t, os.Mkdir(c.Path("localnames"), 0o700))
	if _, _, err := c.Read("localnames"); Exit(err) != ExitConfig || !strings.HasPrefix(err.Error(), c.Path("localnames")) {
		t.Errorf("unreadable file: got %v", err)
	}
}

func TestWriteDefaultsNeverOverwrites(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "etc", "zmailer")
	assert.Must(t, WriteDefaults(dir, "POSTOFFICE=/srv/mail queue", "HASHLEVELS=1"))
	c := assert.Get(Load(filepath.Join(dir, "zmailer.conf")))(t)
	assert.Equal(t, c.PostOffice(), "/srv/mail queue", "postoffice")
	if got, err := c.Int("HASHLEVELS", 0); got != 1 || err != nil {
		t.Errorf("hash levels: got %d, %v", got, err)
	}
	assert.Must(t, os.WriteFile(c.Path("routes"), []byte("mine"), 0o600))
	assert.Must(t, WriteDefaults(dir, "POSTOFFICE=/elsewhere"))
	if got, err := os.ReadFile(c.Path("routes")); string(got) != "mine" || err != nil {
		t.Errorf("routes: got %q, %v", got, err)
	}
	if c, err := Load(c.File); err != nil || c.PostOffice() != "/srv/mail queue" {
		t.Errorf("zmailer.conf was overwritten: %v", err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != len(Files()) {
		t.Errorf("got %d files, %v, want %d", len(entries), err, len(Files()))
	}
}

func TestWriteDefaultsRefusesUnknownSettings(t *testing.T) {
	for _, setting := range []string{"NOSUCH=1", "POSTOFFICE", "HASHLEVELS=9"} {
		if err := WriteDefaults(t.TempDir(), setting); Exit(err) != ExitConfig {
			t.Errorf("%s: got %v", setting, err)
		}
	}
}
