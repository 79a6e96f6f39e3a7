package main

import (
	"errors"
	"log/slog"

	"github.com/urfave/cli/v2"

	"zmailer/internal/disk/lastgood"
	"zmailer/internal/run/config"
	"zmailer/internal/run/keys"
	"zmailer/internal/stage/router"
)

// keep has tables saved that can be used, but not of those who only check, and files of passwords
// opened that this process may not read. A router that serves gets what follows zmailer.conf.
func keep(c *cli.Context, settings *config.Config, log *slog.Logger) (*lastgood.Follower, error) {
	if c.Bool("check-config") {
		return nil, nil
	}
	store, opener := lastgood.Use(settings, "router", log), keys.FromEnvironment()
	if c.Bool("verify") { // smtpserver has started it, or an operator
		lastgood.OpenBy(settings, store, opener)
		return nil, nil
	}
	opener, err := keys.Start(settings, "router")
	if err != nil {
		return nil, err
	}
	lastgood.OpenBy(settings, store, opener)
	if c.Bool("once") {
		return nil, nil
	}
	return lastgood.Follow(settings, "router", store, log, lastgood.Reading(c, router.ConfigFrom)), nil
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
