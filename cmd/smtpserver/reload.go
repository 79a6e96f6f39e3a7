package main

import (
	"log/slog"

	"github.com/urfave/cli/v2"

	"zmailer/internal/disk/lastgood"
	"zmailer/internal/run/config"
	"zmailer/internal/run/keys"
	"zmailer/internal/stage/scheduler/agents"
	"zmailer/internal/stage/smtpserver"
	"zmailer/internal/stage/smtpserver/policy/rcptcheck"
	"zmailer/internal/stage/smtpserver/session"
)

// configure makes the configuration of settings and flags.
func configure(c *cli.Context, settings *config.Config, log *slog.Logger, opener *keys.Client) (smtpserver.Config, error) {
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
	if cfg.Access.RcptCheck != nil {
		cfg.Access.RcptCheck.Attach = opener.Attach
	}
	if cfg.Access.Probe != nil {
		cfg.Access.Probe.Command = agents.Prober(settings, rcptcheck.ProbeCommand)
		cfg.Access.Probe.Attach = opener.Attach
	}
	return cfg, nil
}

// reread reads zmailer.conf again.
func reread(c *cli.Context, follower *lastgood.Follower, log *slog.Logger, opener *keys.Client) (cfg smtpserver.Config, err error) {
	settings, err := follower.Read()
	if err != nil {
		return cfg, err
	}
	cfg, err = configure(c, settings, log, opener)
	return cfg, settings.Locate(err)
}
