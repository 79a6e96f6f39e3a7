package main

import (
	"errors"

	"github.com/urfave/cli/v2"

	"zmailer/internal/run/config"
	"zmailer/internal/run/keys"
	"zmailer/internal/stage/smtpserver"
)

// openKeys starts the process that opens keys for a server.
func openKeys(c *cli.Context, settings *config.Config) (*keys.Client, error) {
	if c.Bool("test-access") {
		return nil, nil
	}
	return keys.Start(settings, "smtpserver")
}

// testAccess prints the decision of the access rules, and nothing else.
func testAccess(c *cli.Context, cfg smtpserver.Config) error {
	cfg.Log = nil
	err := smtpserver.TestAccess(cfg, c.Args().Slice(), c.App.Writer)
	if errors.Is(err, smtpserver.ErrQuestion) {
		return cli.Exit("--test-access: "+err.Error(), config.ExitUsage)
	}
	return err
}
