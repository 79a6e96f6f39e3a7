package main

import (
	"errors"
	"log/slog"

	"github.com/urfave/cli/v2"

	"zmailer/internal/disk/lastgood"
	"zmailer/internal/run/config"
	"zmailer/internal/stage/router"
)

// keep has tables saved that can be used, but not of those who only check or open files. A router
// that serves gets what follows zmailer.conf.
func keep(c *cli.Context, settings *config.Config, log *slog.Logger) *lastgood.Follower {
	switch {
	case c.Bool("check-config"), c.Bool(openFilesFlag):
	case c.Bool("verify"), c.Bool("once"):
		lastgood.Use(settings, "router", log)
	default:
		return lastgood.Follow(settings, "router", lastgood.Use(settings, "router", log), log, lastgood.Reading(c, router.ConfigFrom))
	}
	return nil
}

// follow has the router read zmailer.conf again when it is asked to.
func follow(c *cli.Context, cfg *router.Config, follower *lastgood.Follower) {
	if follower != nil {
		cfg.Loaded, cfg.Follow, cfg.Hangup = follower.Settle, follower, config.Hangups()
		cfg.Reread = func() (router.Config, error) { return reread(c, follower) }
	}
}

// applyFlags has flags override settings.
func applyFlags(c *cli.Context, cfg *router.Config) error {
	cfg.Unsorted, cfg.Once, cfg.StrictStart = c.Bool("s"), c.Bool("once"), c.Bool("strict")
	if c.IsSet("workers") {
		if cfg.Workers = c.Int("workers"); cfg.Workers < 1 {
			return cli.Exit("--workers: it must be a number above 0", config.ExitUsage)
		}
	}
	return nil
}

// reread reads zmailer.conf again.
func reread(c *cli.Context, follower *lastgood.Follower) (cfg router.Config, err error) {
	settings, err := follower.Read()
	if err != nil {
		return cfg, err
	}
	cfg, err = router.ConfigFrom(settings)
	return cfg, errors.Join(settings.Locate(err), applyFlags(c, &cfg))
}
