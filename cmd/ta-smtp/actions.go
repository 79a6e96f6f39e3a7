package main

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"

	"github.com/urfave/cli/v2"

	"zmailer/internal/run/config"
	"zmailer/internal/stage/tasmtp"
)

// channels checks numbers and arguments, and returns the channels to serve: the arguments, or all.
func channels(c *cli.Context) ([]string, error) {
	if c.Int("slots") < 1 || c.Int("connections") < 1 {
		return nil, cli.Exit("--slots and --connections must be 1 or more", config.ExitUsage)
	}
	names := c.Args().Slice()
	for _, name := range names {
		if !strings.HasPrefix(name, "smtp") && !strings.HasPrefix(name, "lmtp") {
			return nil, cli.Exit("channel "+name+" is not served by this agent; see --help", config.ExitUsage)
		}
	}
	if len(names) == 0 {
		return []string{"smtp", "smtpx", "lmtp"}, nil
	}
	return names, nil
}

// checkConfig reports every error in the files that an agent reads.
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

// testDKIM prints how mail from a domain is signed.
func testDKIM(c *cli.Context) error {
	settings, err := config.FromCLI(c)
	if err != nil {
		return err
	}
	err = tasmtp.TestDKIM(c.Context, settings, c.String("test-dkim"), c.App.Writer)
	if errors.Is(err, tasmtp.ErrNotSigned) {
		return cli.Exit("", 1) // the reason has been printed
	}
	return err
}

// question returns the action of a flag that prints an answer and exits, nil if there is none.
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

// testReply prints the rule of the file replies that applies to a reply.
func testReply(c *cli.Context) error {
	settings, err := config.FromCLI(c)
	if err != nil {
		return err
	}
	return tasmtp.TestReply(settings, c.String("test-reply"), strings.Join(c.Args().Slice(), " "), c.App.Writer)
}

// testTLS prints what TLS a host requires.
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
