package main

import (
	"errors"
	"fmt"
	"os/exec"
	"time"

	"github.com/urfave/cli/v2"

	"zmailer/internal/admin/service"
	"zmailer/internal/run/config"
)

func simulateCommand() *cli.Command {
	return &cli.Command{
		Name:      "simulate",
		Usage:     "tell when each host's queue will have drained, and what expires",
		UsageText: "zmctl simulate [--set CLAUSE] [--down HOST] [--up HOST] [--latency TIME] [--until TIME] [--json | --all]",
		Description: `Plays a copy of the queue on a virtual clock, with the scheduler's own decisions and
scheduler.conf as it is now. It only reads, and may be used while mail is delivered. What
is assumed of the hosts stands above the table.

With --set it is played twice, and the two stand side by side:

    zmctl simulate --set 'smtp/* maxring=50' --set 'smtp/slow.example maxthr=2'
    zmctl simulate --down mx.example.com --until 2d
    zmctl simulate --json | jq '.courses[0].hosts[] | select(.expired > 0)'

It runs the program scheduler beside zmctl. Exit codes: 0 shown, 64 bad flags, 71 the
program is missing, 78 bad configuration, a clause that cannot be, or no postoffice.`,
		Flags: []cli.Flag{
			&cli.GenericFlag{Name: "set", Value: &words{}, Usage: "also play it with the `CLAUSE`, like 'smtp/* maxring=50'; may be repeated"},
			&cli.GenericFlag{Name: "down", Value: &words{}, Usage: "`HOST` never answers; may be repeated"},
			&cli.GenericFlag{Name: "up", Value: &words{}, Usage: "`HOST` answers from now on; may be repeated"},
			&cli.DurationFlag{Name: "latency", Value: 500 * time.Millisecond, Usage: "a delivery takes `TIME`"},
			&cli.StringFlag{Name: "until", Usage: "play that `TIME`, like 4h; without, until nothing is left"},
			&cli.Uint64Flag{Name: "seed", Value: 1, Usage: "what is random follows from `NUMBER`"},
			&cli.BoolFlag{Name: "json", Usage: "print JSON"},
			&cli.BoolFlag{Name: "all", Usage: "print every host, not only those that drain last"},
		},
		Action: runSimulate,
	}
}

func runSimulate(c *cli.Context) error {
	if err := noArguments(c); err != nil {
		return err
	}
	settings, err := config.FromCLI(c)
	if err != nil {
		return err
	}
	path, err := service.Program("scheduler")
	if err != nil {
		return cli.Exit(err, config.ExitOSErr)
	}
	cmd := exec.CommandContext(c.Context, path, simulateArgs(c)...)
	cmd.Env = service.Environment(settings)
	cmd.Stdout, cmd.Stderr = c.App.Writer, c.App.ErrWriter
	err = cmd.Run()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return cli.Exit("", max(exit.ExitCode(), 1)) // it has said why
	}
	if err != nil {
		return fmt.Errorf("run %s: %w", path, err)
	}
	return nil
}

// simulateArgs hands on the flags that were given.
func simulateArgs(c *cli.Context) []string {
	args := []string{"--simulate", "--latency=" + c.Duration("latency").String(), fmt.Sprintf("--seed=%d", c.Uint64("seed"))}
	for _, name := range []string{"set", "down", "up"} {
		w, _ := c.Generic(name).(*words)
		for _, value := range w.list {
			args = append(args, "--"+name+"="+value)
		}
	}
	if until := c.String("until"); until != "" {
		args = append(args, "--until="+until)
	}
	for _, name := range []string{"json", "all"} {
		if c.Bool(name) {
			args = append(args, "--"+name)
		}
	}
	return args
}
