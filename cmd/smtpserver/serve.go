package main

import (
	"context"
	"os"

	"zmailer/internal/disk/filesystem"
	"zmailer/internal/run/config"
	"zmailer/internal/run/confine"
	"zmailer/internal/stage/smtpserver"
)

// serve accepts mail, if the file system of the postoffice can hold it, with the privileges
// that confine leaves.
func serve(ctx context.Context, settings *config.Config, cfg smtpserver.Config) error {
	if err := filesystem.Check(settings, cfg.Log); err != nil {
		return err
	}
	if plan := confine.PlanFor("smtpserver", settings); plan.Applies() {
		if a, err := plan.Account(); err == nil && a != nil && os.Geteuid() == 0 {
			cfg.Owner = a.UID
		}
		cfg.Confine = func() error { return confine.Enter("smtpserver", settings, cfg.Log) }
	}
	return settings.Locate(cfg.Lease.Under(ctx, cfg.Log, func(ctx context.Context) error { return smtpserver.Run(ctx, cfg) }))
}
