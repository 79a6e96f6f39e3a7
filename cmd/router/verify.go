package main

import (
	"log/slog"
	"os"
	"time"

	"github.com/urfave/cli/v2"

	"zmailer/internal/disk/lastgood"
	"zmailer/internal/run/config"
	"zmailer/internal/stage/router"
	"zmailer/internal/stage/router/route"
)

// verify reports whether there is anybody behind recipients: those on the command line, or
// those that a program asks about on standard input.
func verify(c *cli.Context, settings *config.Config, log *slog.Logger) error {
	_, v, err := lastgood.Load(c, settings, "router", nil, log, verifierFrom)
	if err != nil {
		return err
	}
	defer v.Close()
	if c.NArg() == 0 {
		return v.Serve(c.Context, os.Stdin, c.App.Writer)
	}
	return v.Tell(c.Context, c.App.Writer, c.String("from"), c.Args().Slice())
}

func verifierFrom(settings *config.Config) (*route.Verifier, error) {
	cfg, err := router.ConfigFrom(settings)
	if err != nil {
		return nil, err
	}
	limit, err := settings.Duration("RCPTCHECKTIME", 5*time.Second)
	if err != nil {
		return nil, err
	}
	// It is to say that it had no time before the caller believes that it is dead.
	v, err := route.NewVerifier(cfg.Config, limit-limit/10)
	return v, settings.Locate(err)
}
