package main

import (
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/urfave/cli/v2"

	"zmailer/internal/disk/lastgood"
	"zmailer/internal/run/config"
	"zmailer/internal/stage/smtpserver"
	"zmailer/internal/stage/smtpserver/session"
)

// configure makes the configuration of settings and flags.
func configure(c *cli.Context, settings *config.Config, log *slog.Logger) (smtpserver.Config, error) {
	cfg, err := smtpserver.ConfigFrom(settings)
	if err != nil {
		return cfg, err
	}
	if addrs := c.StringSlice("listen"); len(addrs) > 0 {
		if err = smtpserver.CheckListen(addrs); err != nil {
			return cfg, cli.Exit("--listen: "+err.Error(), config.ExitUsage)
		}
		cfg.Listen[session.RoleMX], cfg.ListenUnset = addrs, false
	}
	if c.IsSet("max-connections") {
		cfg.Limits.MaxConnections = c.Int("max-connections")
	}
	cfg.ReadTimeout, cfg.WriteTimeout, cfg.StopTimeout = c.Duration("timeout"), c.Duration("timeout"), c.Duration("stop-timeout")
	cfg.Log = log
	return cfg, nil
}

// hangups returns the signals that ask for zmailer.conf to be read again.
func hangups() <-chan os.Signal {
	c := make(chan os.Signal, 1) // further ones while one is answered are one
	signal.Notify(c, syscall.SIGHUP)
	return c
}

// reread reads zmailer.conf again, and returns the names of the settings that have changed
// since it was read last.
func reread(c *cli.Context, store *lastgood.Store, log *slog.Logger) (cfg smtpserver.Config, changed []string, err error) {
	var kept *config.Kept
	settings, err := config.FromCLI(c)
	if err != nil {
		return cfg, nil, err
	}
	if store != nil {
		if kept = store.Last(settings.File); kept != nil {
			changed = settings.Changed(kept.Text)
		}
		settings.SetKeeper(store)
	}
	cfg, err = configure(c, settings, log)
	cfg.Loaded = func() { store.Follows(settings) }
	return cfg, changed, settings.Locate(err)
}
