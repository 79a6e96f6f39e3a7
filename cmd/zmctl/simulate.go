package main

import (
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"zmailer/internal/admin/simulate"
	"zmailer/internal/disk/lastgood"
	"zmailer/internal/run/config"
	"zmailer/internal/stage/scheduler/conf"
	"zmailer/internal/ui/text"
)

func simulateCommand() *cli.Command {
	return &cli.Command{
		Name:      "simulate",
		Usage:     "predict when each host's queue will be empty, and what will expire",
		UsageText: "zmctl simulate [--set CLAUSE] [--down HOST] [--up HOST] [--latency TIME] [--until TIME] [--json | --all]",
		Description: `Plays a copy of the queue on a virtual clock, with the scheduler's own decisions and the
current scheduler.conf. It only reads, and may run while mail is delivered. The assumptions
about the hosts are printed above the table.

With --set the queue is played twice, and the table shows both results:

    zmctl simulate --set 'smtp/* maxring=50' --set 'smtp/slow.example maxthr=2'
    zmctl simulate --down mx.example.com --until 2d
    zmctl simulate --json | jq '.courses[0].hosts[] | select(.expired > 0)'

Exit codes: 0 shown, 64 bad flags, 78 bad configuration or clause, or no postoffice.`,
		Flags: []cli.Flag{
			&cli.GenericFlag{Name: "set", Value: &words{}, Usage: "simulate also with the `CLAUSE`, like 'smtp/* maxring=50'; may be repeated"},
			&cli.GenericFlag{Name: "down", Value: &words{}, Usage: "`HOST` never answers; may be repeated"},
			&cli.GenericFlag{Name: "up", Value: &words{}, Usage: "`HOST` answers from now on; may be repeated"},
			&cli.DurationFlag{Name: "latency", Value: 500 * time.Millisecond, Usage: "a delivery takes `TIME`"},
			&cli.StringFlag{Name: "until", Usage: "simulate `TIME`, like 4h; the default is until the queue is empty"},
			&cli.Uint64Flag{Name: "seed", Value: 1, Usage: "the seed of random decisions is `NUMBER`"},
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
	settings, err := lastgood.Accepted(c)
	if err != nil {
		return err
	}
	clauses, err := conf.Load(settings, true) // no agent is started
	if err != nil {
		return err
	}
	o := simulate.Options{
		Set: strings.Join(repeated(c, "set"), "\n"), Down: repeated(c, "down"), Up: repeated(c, "up"),
		Latency: c.Duration("latency"), Seed: c.Uint64("seed"),
	}
	if text := c.String("until"); text != "" {
		if o.Until, err = config.ParseDuration(text); err != nil || o.Until <= 0 {
			return cli.Exit("--until "+text+": it must be a time like 4h or 2d", config.ExitUsage)
		}
	}
	r, err := simulate.Run(c.Context, settings, clauses, o)
	if err != nil {
		return err
	}
	if c.Bool("json") {
		return text.PrintJSON(c.App.Writer, r)
	}
	rows := simulatedHosts
	if c.Bool("all") {
		rows = 0
	}
	return text.PrintSimulation(c.App.Writer, r, rows)
}

// simulatedHosts is the number of hosts in the table without --all.
const simulatedHosts = 40

// repeated returns the values of a flag that may be repeated.
func repeated(c *cli.Context, name string) []string {
	w, _ := c.Generic(name).(*words)
	return w.list
}
