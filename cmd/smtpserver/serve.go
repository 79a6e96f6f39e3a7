package main

import (
	"context"

	"zmailer/internal/disk/filesystem"
	"zmailer/internal/run/config"
	"zmailer/internal/stage/smtpserver"
)

// serve takes mail, if the file system of the postoffice can hold it.
func serve(ctx context.Context, settings *config.Config, cfg smtpserver.Config) error {
	if err := filesystem.Check(settings, cfg.Log); err != nil {
		return err
	}
	return smtpserver.Run(ctx, cfg)
}
