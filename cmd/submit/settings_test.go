package main

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/urfave/cli/v2"

	"zmailer/internal/disk/lastgood"
	"zmailer/internal/run/assert"
	"zmailer/internal/run/config"
)

// Op1: what submit reads of zmailer.conf is what the scheduler publishes for it.
func TestOp1SubmitReadsOnlyWhatIsPublished(t *testing.T) {
	file := filepath.Join(t.TempDir(), "zmailer.conf")
	assert.Must(t, os.WriteFile(file, []byte("MAXSIZE=5M\n"), 0o600))
	settings := assert.Get(config.Load(file))(t)
	read := map[string]bool{}
	settings.OnRead(func(name string) { read[name] = true })
	app := &cli.App{Flags: config.Flags(), Action: func(c *cli.Context) error {
		_, err := submission(c, settings)
		_, herr := settings.Hostname()
		assert.Must(t, err, herr)
		return nil
	}}
	assert.Must(t, app.Run([]string{"submit"}))
	for name := range read {
		if name != "POSTOFFICE" && !slices.Contains(lastgood.SubmitSettings(), name) {
			t.Errorf("submit reads %s, which is not published", name)
		}
	}
	if len(read) < 4 {
		t.Errorf("it reads %v alone", read)
	}
}
