package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"zmailer/internal/run/config"
	"zmailer/internal/stage/scheduler"
)

// shownHosts is how many hosts the table has without --all.
const shownHosts = 40

func simulateFlags() []cli.Flag {
	return []cli.Flag{
		&cli.BoolFlag{Name: "simulate", Usage: "play a copy of the queue on a virtual clock, print when each host will drain and what expires, and exit; nothing is changed"},
		&cli.GenericFlag{Name: "set", Value: new(words), Usage: "with --simulate: also play it with this clause, like `'smtp/* maxring=50'`; may be repeated"},
		&cli.GenericFlag{Name: "down", Value: new(words), Usage: "with --simulate: `HOST` never answers; may be repeated"},
		&cli.GenericFlag{Name: "up", Value: new(words), Usage: "with --simulate: `HOST` answers from now on; may be repeated"},
		&cli.DurationFlag{Name: "latency", Value: 500 * time.Millisecond, Usage: "with --simulate: a delivery takes `TIME`"},
		&cli.StringFlag{Name: "until", Usage: "with --simulate: play so far, like `4h`; without, until nothing is left"},
		&cli.Uint64Flag{Name: "seed", Value: 1, Usage: "with --simulate: what is random follows from `NUMBER`"},
		&cli.BoolFlag{Name: "json", Usage: "with --simulate: print JSON"},
		&cli.BoolFlag{Name: "all", Usage: "with --simulate: print every host"},
	}
}

func simulate(c *cli.Context, cfg scheduler.Config) error {
	a := scheduler.Simulation{
		Set: strings.Join(given(c, "set"), "\n"), Down: given(c, "down"), Up: given(c, "up"),
		Latency: c.Duration("latency"), Seed: c.Uint64("seed"),
	}
	if text := c.String("until"); text != "" {
		d, err := config.ParseDuration(text)
		if err != nil || d <= 0 {
			return cli.Exit("--until "+text+": a time like 4h or 2d", config.ExitUsage)
		}
		a.Until = d
	}
	result, err := scheduler.Simulate(c.Context, cfg, a)
	if err != nil {
		return err
	}
	if c.Bool("json") {
		out := json.NewEncoder(c.App.Writer)
		out.SetIndent("", "  ")
		if err := out.Encode(result); err != nil {
			return fmt.Errorf("print the simulation: %w", err)
		}
		return nil
	}
	rows := shownHosts
	if c.Bool("all") {
		rows = 0
	}
	return result.Print(c.App.Writer, rows)
}

// words are the values of a flag that may be repeated. A comma parts nothing: patterns
// hold some.
type words []string

// Set adds a value.
func (w *words) Set(value string) error {
	*w = append(*w, value)
	return nil
}

func (w *words) String() string { return strings.Join(*w, " ") }

// given are the values of such a flag.
func given(c *cli.Context, name string) []string {
	w, _ := c.Generic(name).(*words)
	if w == nil {
		return nil
	}
	return *w
}
