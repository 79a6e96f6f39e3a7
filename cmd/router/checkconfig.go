package main

import (
	"fmt"

	"github.com/urfave/cli/v2"

	"zmailer/internal/run/config"
	"zmailer/internal/run/keys"
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

// flags returns those of the router alone.
func flags() []cli.Flag {
	return []cli.Flag{
		&cli.BoolFlag{Name: "s", Usage: "route messages in directory order, not oldest first"},
		&cli.IntFlag{Name: "workers", Usage: "route `N` messages at the same time instead of ROUTERWORKERS"},
		&cli.BoolFlag{Name: "strict", Usage: "do not start while unfinished files are in public/: list them and exit 78"},
		&cli.BoolFlag{Name: "check-config", Usage: "check the tables, report errors, and exit"},
		&cli.StringFlag{Name: "from", Usage: "with --verify: the sender is `ADDRESS`"},
		&cli.BoolFlag{Name: "verify", Usage: "verify that the addresses, or those read from standard input, are deliverable (docs/access.md), and exit"},
		&cli.BoolFlag{Name: openFilesFlag, Usage: "only open files in closed directories for a router without that right (docs/privileges.md)"},
		&cli.BoolFlag{Name: keys.Flag, Usage: keys.Usage},
		&cli.BoolFlag{Name: "once", Usage: "route all waiting messages, one after the other, and exit"},
	}
}

// helping returns what this process does as a helper of another router; nil: it is not started as one.
func helping(c *cli.Context) func(*config.Config) error {
	switch {
	case c.Bool(openFilesFlag):
		return openFiles
	case c.Bool(keys.Flag):
		return func(settings *config.Config) error { return keys.Help(settings, "router") }
	}
	return nil
}
