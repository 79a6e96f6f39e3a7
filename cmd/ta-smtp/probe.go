package main

import (
	"os"

	"github.com/urfave/cli/v2"

	"zmailer/internal/run/config"
	"zmailer/internal/stage/tasmtp"
)

// serve delivers for the scheduler or, with --probe, answers whether next hops take recipients;
// that runs anywhere, not in transport/.
func serve(c *cli.Context, settings *config.Config, cfg tasmtp.Config) error {
	if !c.Bool("probe") {
		return tasmtp.Run(c.Context, cfg, os.Stdin, os.Stdout)
	}
	cfg.PostOffice = settings.PostOffice()
	return tasmtp.ServeProbes(c.Context, cfg, os.Stdin, os.Stdout)
}
