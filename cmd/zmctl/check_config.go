package main

import (
	"errors"
	"fmt"
	"os/exec"

	"github.com/urfave/cli/v2"

	"zmailer/internal/config"
)

func checkConfigCommand() *cli.Command {
	return &cli.Command{
		Name:      "check-config",
		Usage:     "tell what is wrong with the configuration",
		UsageText: "zmctl check-config",
		Description: `Reads zmailer.conf, scheduler.conf, the router's tables and those of ta-smtp (replies, tls,
credentials, dkim and its keys) as they do, by their programs beside zmctl, and says of each error file, line, column and reason. Of
scheduler.conf it tells them all, and warns of what is hardly meant: clauses that are
never reached, programs that are not there, routes to channels that no clause serves.

Nothing is changed, and no daemon is asked: check first, then zmctl reload. Exit codes:
0 it can be used, 71 a program is missing, 78 it cannot be used.`,
		Action: runCheckConfig,
	}
}

func runCheckConfig(c *cli.Context) error {
	if err := noArguments(c); err != nil {
		return err
	}
	settings, err := config.FromCLI(c)
	if err != nil {
		return err
	}
	worst := 0
	for _, name := range []string{"scheduler", "router", "ta-smtp"} {
		path, err := program(name)
		if err != nil {
			return cli.Exit(err, config.ExitOSErr)
		}
		cmd := exec.CommandContext(c.Context, path, "--check-config")
		cmd.Env = environment(settings)
		cmd.Stdout, cmd.Stderr = c.App.Writer, c.App.ErrWriter
		err = cmd.Run()
		if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
			worst = max(worst, exit.ExitCode(), 1) // it has said why
		} else if err != nil {
			return fmt.Errorf("run %s: %w", path, err)
		}
	}
	if worst > 0 {
		return cli.Exit("", worst)
	}
	return nil
}
