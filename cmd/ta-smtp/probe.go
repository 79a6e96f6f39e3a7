package main

import (
	"log/slog"
	"os"

	"github.com/urfave/cli/v2"

	"zmailer/internal/disk/lastgood"
	"zmailer/internal/run/config"
	"zmailer/internal/run/keys"
	"zmailer/internal/stage/tasmtp"
)

// useCopies opens the store of copies, with what opens keys that this process may not read. saves is
// where new ones are kept; a probe keeps none.
func useCopies(c *cli.Context, settings *config.Config, log *slog.Logger) (store, saves *lastgood.Store) {
	store = lastgood.Use(settings, "ta-smtp", log)
	lastgood.OpenBy(settings, store, keys.FromEnvironment())
	if c.Bool("probe") {
		return store, nil
	}
	return store, store
}

// only returns what removes copies and notes of files that are named no more. A probe removes none:
// its sandbox may only read them.
func only(c *cli.Context, store *lastgood.Store, settings *config.Config) func(files []string) {
	if c.Bool("probe") {
		return nil
	}
	return func(files []string) { store.Only(append(files, settings.File)) }
}

// serve delivers for the scheduler or, with --probe, answers whether next hops take recipients;
// that runs anywhere, not in transport/.
func serve(c *cli.Context, settings *config.Config, cfg tasmtp.Config) error {
	if !c.Bool("probe") {
		return tasmtp.Run(c.Context, cfg, os.Stdin, os.Stdout)
	}
	cfg.PostOffice = settings.PostOffice()
	return tasmtp.ServeProbes(c.Context, cfg, os.Stdin, os.Stdout)
}
