package router

import (
	"cmp"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"zmailer/internal/run/assert"
	"zmailer/internal/run/config"
)

// Loc5: SENDERCHECK chooses who may name a sender.
func TestConfigurationIsRead(t *testing.T) {
	dir := t.TempDir()
	load := func(text string) (Config, error) {
		path := filepath.Join(dir, "zmailer.conf")
		assert.Must(t, os.WriteFile(path, []byte("HOSTNAME=mx.example.org\n"+text), 0o600))
		c := assert.Get(config.Load(path))(t)
		return ConfigFrom(c)
	}
	for text, want := range map[string]bool{"": false, "SENDERCHECK=any\n": false, "SENDERCHECK=owner\n": true} {
		c := assert.Get(load(text))(t)
		assert.Equal(t, c.OwnSenders, want, "%q", text)
	}
	c, err := load("TRUSTED=\"root 1234\"\nROUTERWORKERS=3\nROUTERPOLL=1m\nHASHLEVELS=1\nSYNC=strict\n")
	assert.Must(t, err)
	assert.Same(t, []any{c.Trusted, c.Workers, c.Poll, c.HashLevels, c.Strict, c.Rules.Dir}, []any{[]uint32{0, 1234}, 3, time.Minute, 1, true, dir}, "settings")
	bad := (*config.Error)(nil)
	if _, err = load("TRUSTED=no-such-login\n"); !errors.As(err, &bad) || bad.Line != 2 {
		t.Errorf("got %v, want an error in line 2", err)
	}
}

func TestUnusablePostofficeOrTableEndsTheProgramWith78(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		change      func(*Config)
		table, text string
		file        string // that the error names
		line        int
	}{
		"no postoffice":          {change: func(c *Config) { c.PostOffice = c.Rules.Dir }},
		"bad route":              {table: "routes", text: "a.example smtp!\nb.example nothing\n", file: "routes", line: 2},
		"bad masquerade":         {table: "masquerade", text: "x\n", file: "masquerade", line: 1},
		"bad header rule":        {table: "header-rules", text: "all keep X\n", file: "header-rules", line: 1},
		"missing file":           {change: func(c *Config) { c.Masquerade = []string{"nosuch"} }, file: "nosuch"},
		"unknown kind":           {change: func(c *Config) { c.Masquerade = []string{"nosuch:x"} }, file: "nosuch:x"},
		"missing file as second": {change: func(c *Config) { c.Masquerade = []string{"first", "gone"} }, table: "first", file: "gone"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := newOffice(t, nil)
			o.table(cmp.Or(tt.table, "unused"), tt.text)
			c := o.config()
			c.Once = true
			if tt.change != nil {
				tt.change(&c)
			}
			err := Run(t.Context(), c)
			assert.Equal(t, config.Exit(err), config.ExitConfig, "exit code of %v", err)
			if bad := (*config.Error)(nil); !errors.As(err, &bad) || !strings.HasSuffix(bad.File, tt.file) || bad.Line != tt.line {
				t.Errorf("got %v, want %s:%d", err, tt.file, tt.line)
			}
		})
	}
}
