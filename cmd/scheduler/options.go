package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/urfave/cli/v2"

	"zmailer/internal/run/config"
	"zmailer/internal/stage/scheduler"
	"zmailer/internal/stage/scheduler/engine"
	"zmailer/internal/stage/tasmtp/tlspolicy"
)

// startFlags are ZMailer's flags for the start of the scheduler.
func startFlags() []cli.Flag {
	return []cli.Flag{
		&cli.IntFlag{Name: "E", Usage: "read at most `N` specifications in one pass; further passes follow at once"},
		&cli.BoolFlag{Name: "F", Usage: "freeze: read the queue and answer queries, but deliver nothing and expire nothing"},
		&cli.BoolFlag{Name: "H", Usage: "use one level of directories in queue/ and transport/ instead of HASHLEVELS; -H -H: two levels", Count: new(int)},
		&cli.BoolFlag{Name: "S", Usage: "read all of transport/ before the first delivery"},
		&cli.StringFlag{Name: "p", Usage: "serve only the thread `CHANNEL/HOST`; either part may be *; all others wait"},
	}
}

// applyStart puts the flags of startFlags into the configuration.
func applyStart(c *cli.Context, cfg *engine.Config) error {
	if n := c.Count("H"); n > 2 {
		return cli.Exit("-H: there are at most two levels", config.ExitUsage)
	} else if n > 0 {
		cfg.HashLevels = n
	}
	if c.IsSet("E") {
		if cfg.Start.AtOnce = c.Int("E"); cfg.Start.AtOnce < 1 {
			return cli.Exit("-E: it must be a number above 0", config.ExitUsage)
		}
	}
	cfg.StopTimeout = c.Duration("stop-timeout")
	cfg.Start.Strict, cfg.Start.Freeze, cfg.Start.ReadFirst = c.Bool("strict"), c.Bool("F"), c.Bool("S")
	if only := c.String("p"); only != "" {
		channel, host, ok := strings.Cut(only, "/")
		if !ok || channel == "" || host == "" {
			return cli.Exit("-p: it must be CHANNEL/HOST", config.ExitUsage)
		}
		cfg.Start.OnlyChannel, cfg.Start.OnlyHost = channel, host
	}
	return nil
}

// checkConfig reports errors and warnings in scheduler.conf.
func checkConfig(settings *config.Config, stdout, stderr io.Writer) error {
	errs, warnings := config.Sort(scheduler.CheckConfig(settings, checkTLSPolicy))
	for _, w := range config.Errors(warnings) {
		fmt.Fprintln(stdout, w)
	}
	if errs != nil {
		for _, err := range config.Errors(errs) {
			fmt.Fprintln(stderr, err)
		}
		return cli.Exit("", config.ExitConfig)
	}
	_, err := fmt.Fprintln(stdout, scheduler.Describe(settings))
	return err
}

// checkTLSPolicy checks a clause's tls= as ta-smtp will at its start.
func checkTLSPolicy(policy string) error {
	_, err := tlspolicy.ParsePolicy(policy, "")
	return err
}
