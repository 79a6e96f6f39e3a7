package main

import (
	"log/slog"
	"os"

	"github.com/urfave/cli/v2"

	"zmailer/internal/disk/lastgood"
	"zmailer/internal/run/config"
)

// followHangups reads zmailer.conf again at each hangup, until the program ends.
func followHangups(c *cli.Context, settings *config.Config, log *slog.Logger, hangups <-chan os.Signal) {
	follow := lastgood.Follow(settings, "zmotlp", lastgood.Use(settings, "zmotlp", log), log, func() (*config.Config, error) { return config.FromCLI(c) })
	defer follow.End()
	for {
		select {
		case <-c.Context.Done():
			return
		case <-hangups:
			if _, err := follow.Read(); err != nil {
				follow.Refuse(err)
				continue
			}
			log.Info("conf-read", follow.Accept()...)
		}
	}
}
