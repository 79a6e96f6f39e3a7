package main

import (
	"fmt"

	"github.com/urfave/cli/v2"

	"zmailer/internal/run/config"
	"zmailer/internal/stage/router"
	"zmailer/internal/stage/router/route"
)

// question returns the action of a flag that makes the router answer and exit, nil if there is none.
func question(c *cli.Context) func(*cli.Context, *config.Config, router.Config) error {
	switch {
	case c.Bool("check-config"):
		return checkConfig
	case c.Bool("verify"):
		return verify
	}
	return nil
}

// checkConfig reports errors in the tables.
func checkConfig(c *cli.Context, settings *config.Config, cfg router.Config) error {
	if err := route.CheckTables(cfg.Config); err != nil {
		return settings.Locate(err)
	}
	fmt.Fprintln(c.App.Writer, "the router's tables can be used")
	return nil
}
