package main

import (
	"fmt"

	"github.com/urfave/cli/v2"

	"zmailer/internal/run/config"
	"zmailer/internal/ui/completion"
)

func completionCommand() *cli.Command {
	return &cli.Command{
		Name: "completion", Usage: "print a script that completes zmctl's commands and flags in a shell",
		UsageText: "zmctl completion bash|zsh|fish",
		Description: `Prints a script for the shell; packages install it. By hand, for this shell or permanently:

    . <(zmctl completion bash)
    zmctl completion zsh > ~/.zfunc/_zmctl
    zmctl completion fish > ~/.config/fish/completions/zmctl.fish

Commands, flags, daemons and the spool IDs of queued mail are completed.

Exit codes: 0 printed, 64 bad arguments.`,
		Action: func(c *cli.Context) error {
			script, ok := completion.Script(c.App, c.Args().First())
			if !ok || c.NArg() != 1 {
				return cli.Exit("zmctl completion needs a shell: bash, zsh or fish", config.ExitUsage)
			}
			_, err := fmt.Fprint(c.App.Writer, script)
			return err
		},
	}
}
