package main

import (
	"bytes"
	"errors"
	"fmt"
	"os/exec"
	"strings"

	"github.com/urfave/cli/v2"

	"zmailer/internal/admin/service"
	"zmailer/internal/run/config"
	"zmailer/internal/run/human"
	"zmailer/internal/ui/text"
)

func checkConfigCommand() *cli.Command {
	return &cli.Command{
		Name:      "check-config",
		Usage:     "tell what is wrong with the configuration",
		UsageText: "zmctl check-config [--json]",
		Description: `Reads zmailer.conf, scheduler.conf, the router's tables and those of ta-smtp (replies,
discard-ehlo-keywords, tls, credentials, dkim and its keys) as they do, by their programs
beside zmctl, and says of each error file, line, column and reason. Of scheduler.conf it
tells them all, and warns of what is hardly meant: clauses that are never reached, programs
that are not there, routes to channels that no clause serves.

Nothing is changed, and no daemon is asked: check first, then zmctl reload. Exit codes:
0 it can be used, 71 a program is missing, 78 it cannot be used.`,
		Flags:  []cli.Flag{&cli.BoolFlag{Name: "json", Usage: "print one JSON object: what each program said, a line each"}},
		Action: runCheckConfig,
	}
}

// configSaid is what the programs said of the configuration.
type configSaid struct {
	Usable bool         `json:"usable"`
	Lines  []configLine `json:"lines"`
}

// configLine is a line of one program.
type configLine struct {
	Program string `json:"program"`
	Text    string `json:"text"`
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
	said := configSaid{Usable: true}
	for _, name := range []string{"scheduler", "router", "ta-smtp"} {
		path, err := service.Program(name)
		if err != nil {
			return cli.Exit(err, config.ExitOSErr)
		}
		cmd := exec.CommandContext(c.Context, path, "--check-config")
		cmd.Env = service.Environment(settings)
		cmd.Stdout, cmd.Stderr = c.App.Writer, c.App.ErrWriter
		var text bytes.Buffer
		if c.Bool("json") {
			cmd.Stdout, cmd.Stderr = &text, &text
		}
		err = cmd.Run()
		if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
			worst = max(worst, exit.ExitCode(), 1) // it has said why
		} else if err != nil {
			return fmt.Errorf("run %s: %w", path, err)
		}
		said.Usable = worst == 0
		for line := range strings.Lines(text.String()) {
			said.Lines = append(said.Lines, configLine{Program: name, Text: human.Clean(strings.TrimRight(line, "\n"))})
		}
	}
	if c.Bool("json") {
		if err := text.PrintJSON(c.App.Writer, said); err != nil {
			return err
		}
	}
	if worst > 0 {
		return cli.Exit("", worst)
	}
	return nil
}
