package main

import (
	"errors"
	"fmt"

	"github.com/urfave/cli/v2"

	"zmailer/internal/run/config"
	"zmailer/internal/stage/tasmtp"
)

// checkConfig says what is wrong with what an agent reads.
func checkConfig(c *cli.Context) error {
	settings, err := config.FromCLI(c)
	if err != nil {
		return err
	}
	for _, r := range settings.Retired() {
		fmt.Fprintln(c.App.Writer, r)
	}
	if err := tasmtp.CheckConfig(settings); err != nil {
		return cli.Exit(err, config.ExitConfig)
	}
	fmt.Fprintln(c.App.Writer, "the tables of ta-smtp can be used")
	return nil
}

// testDKIM says how mail from a domain is signed.
func testDKIM(c *cli.Context) error {
	settings, err := config.FromCLI(c)
	if err != nil {
		return err
	}
	err = tasmtp.TestDKIM(c.Context, settings, c.String("test-dkim"), c.App.Writer)
	if errors.Is(err, tasmtp.ErrNotSigned) {
		return cli.Exit("", 1) // it has said why
	}
	return err
}
