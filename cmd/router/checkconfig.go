package main

import (
	"fmt"

	"github.com/urfave/cli/v2"

	"zmailer/internal/run/config"
	"zmailer/internal/stage/router"
	"zmailer/internal/stage/router/route"
)

// checkConfig reports errors in the tables.
func checkConfig(c *cli.Context, settings *config.Config, cfg router.Config) error {
	if err := route.CheckTables(cfg.Config); err != nil {
		return settings.Locate(err)
	}
	fmt.Fprintln(c.App.Writer, "the router's tables can be used")
	return nil
}
