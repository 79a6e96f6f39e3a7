package main

import (
	"fmt"
	"os"

	"github.com/urfave/cli/v2"

	"zmailer/internal/run/config"
	"zmailer/internal/ui/term"
)

func colorFlag() cli.Flag {
	return &cli.StringFlag{Name: "color", Value: "auto", Usage: "colours `WHEN`: auto (on a terminal), always or never"}
}

// setColour has --color decide in the environment, where the programs look that zmctl runs:
// router, scheduler, zmtop.
func setColour(c *cli.Context) error {
	var errs [2]error
	switch when := c.String("color"); when {
	case "auto":
	case "always":
		errs = [2]error{os.Unsetenv(term.Never), os.Setenv(term.Always, "1")}
	case "never":
		errs = [2]error{os.Unsetenv(term.Always), os.Setenv(term.Never, "1")}
	default:
		return cli.Exit("--color "+when+": it is auto, always or never", config.ExitUsage)
	}
	for _, err := range errs {
		if err != nil {
			return fmt.Errorf("--color: %w", err)
		}
	}
	return nil
}
