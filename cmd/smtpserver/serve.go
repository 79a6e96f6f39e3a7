package main

import (
	"context"

	"zmailer/internal/disk/filesystem"
	"zmailer/internal/run/config"
	"zmailer/internal/run/confine"
	"zmailer/internal/run/keys"
	"zmailer/internal/stage/scheduler/agents"
	"zmailer/internal/stage/smtpserver"
	"zmailer/internal/stage/smtpserver/policy/rcptcheck"
)

// serve accepts mail, if the file system of the postoffice can hold it, with the privileges
// that confine leaves.
func serve(ctx context.Context, settings *config.Config, cfg smtpserver.Config, opener *keys.Client) error {
	if err := filesystem.Check(settings, cfg.Log); err != nil {
		return err
	}
	if cfg.Access.Probe != nil {
		cfg.Access.Probe.Command = agents.Prober(settings, rcptcheck.ProbeCommand)
		cfg.Access.Probe.Attach = opener.Attach
	}
	if confine.PlanFor("smtpserver", settings).Applies() {
		cfg.Confine = func() error { return confine.Enter("smtpserver", settings, cfg.Log) }
	}
	return settings.Locate(smtpserver.Run(ctx, cfg))
}
