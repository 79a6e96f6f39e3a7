package main

import (
	"log/slog"
	"os"
	"strings"

	"github.com/urfave/cli/v2"

	"zmailer/internal/run/config"
	"zmailer/internal/stage/tasmtp"
)

// question is what answers the flag that asks something, nil if none does.
func question(c *cli.Context) cli.ActionFunc {
	switch {
	case c.IsSet("test-reply"):
		return testReply
	case c.IsSet("test-tls"):
		return testTLS
	case c.IsSet("test-dkim"):
		return testDKIM
	case c.Bool("check-config"):
		return checkConfig
	}
	return nil
}

// testReply says what the file replies makes of a reply.
func testReply(c *cli.Context) error {
	settings, err := config.FromCLI(c)
	if err != nil {
		return err
	}
	return tasmtp.TestReply(settings, c.String("test-reply"), strings.Join(c.Args().Slice(), " "), c.App.Writer)
}

// testTLS says what is wanted of TLS towards a host.
func testTLS(c *cli.Context) error {
	settings, err := config.FromCLI(c)
	if err != nil {
		return err
	}
	cfg, err := tasmtp.ConfigFrom(settings)
	if err != nil {
		return err
	}
	if err := cfg.Zone(os.Getenv); err != nil {
		return err
	}
	cfg.PostOffice, cfg.Log = settings.PostOffice(), slog.New(slog.DiscardHandler)
	return tasmtp.TestTLS(c.Context, cfg, c.String("test-tls"), c.App.Writer)
}
