// Command zmtop shows a mail system on a terminal as it works. zmctl top starts it: what
// draws on terminals stays out of zmctl, which starts and is a daemon.
package main

import (
	"os"
	"time"

	"github.com/mattn/go-isatty"
	"github.com/urfave/cli/v2"

	"zmailer/internal/disk/lastgood"
	"zmailer/internal/run/config"
	"zmailer/internal/ui/top"
	"zmailer/internal/ui/top/live"
)

const description = `Shows the mail system on a terminal and updates the display: the number of messages in each
stage and the age of the oldest, the rates, the scheduler's threads, and alarms. zmctl top
starts it if there is a terminal. See zmctl top --help and docs/top.md.

    zmtop --config /etc/zmailer/zmailer.conf --interval 2s

It changes nothing. Keys: ? lists them, q quits. Exit codes: 0 quit, 1 the terminal cannot
be used, 64 bad flags or no terminal, 78 bad configuration or no postoffice.`

func main() {
	config.Main(&cli.App{
		Name:        "zmtop",
		Usage:       "show the activity of the mail system on a terminal",
		UsageText:   "zmtop [--interval TIME] [flags]",
		Description: description,
		Flags: append(config.Flags(),
			&cli.DurationFlag{Name: "interval", Value: time.Second, Usage: "update every `TIME`"}),
		HideHelpCommand: true,
		Action:          run,
	})
}

func run(c *cli.Context) error {
	if c.NArg() > 0 {
		return cli.Exit("no arguments are allowed; --help lists the flags", config.ExitUsage)
	}
	if !isatty.IsTerminal(os.Stdout.Fd()) || !isatty.IsTerminal(os.Stdin.Fd()) {
		return cli.Exit("standard input or output is not a terminal; zmctl top --once prints a snapshot", config.ExitUsage)
	}
	settings, err := lastgood.Accepted(c)
	if err != nil {
		return err
	}
	s, err := top.Open(settings)
	if err != nil {
		return err
	}
	defer s.Close()
	return live.Run(c.Context, s, c.Duration("interval"))
}
