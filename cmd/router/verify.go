package main

import (
	"os"
	"time"

	"github.com/urfave/cli/v2"

	"zmailer/internal/run/config"
	"zmailer/internal/stage/router"
	"zmailer/internal/stage/router/route"
)

// verify reports whether there is anybody behind recipients: those on the command line, or
// those that a program asks about on standard input.
func verify(c *cli.Context, settings *config.Config, cfg router.Config) error {
	limit, err := settings.Duration("RCPTCHECKTIME", 5*time.Second)
	if err != nil {
		return err
	}
	// It is to say that it had no time before the caller believes that it is dead.
	v, err := route.NewVerifier(cfg.Config, limit-limit/10)
	if err != nil {
		return err
	}
	defer v.Close()
	if c.NArg() == 0 {
		return v.Serve(c.Context, os.Stdin, c.App.Writer)
	}
	return v.Tell(c.Context, c.App.Writer, c.String("from"), c.Args().Slice())
}
