package config

import (
	"testing"
	"time"

	"github.com/urfave/cli/v2"

	"zmailer/internal/run/assert"
)

func TestProgramDescribesItself(t *testing.T) {
	app := &cli.App{
		Name: "prog", Usage: "do things", UsageText: "prog [-n N]\n   prog sub", Description: "Does things.",
		Flags: []cli.Flag{
			&cli.IntFlag{Name: "n", Usage: "do `N` things"},
			&cli.DurationFlag{Name: "time", Aliases: []string{"t"}, Value: 5 * time.Minute, Usage: "end after `TIME`"},
			&cli.StringFlag{Name: "dir", Value: "x", EnvVars: []string{"DIR"}, Usage: "work there"},
			&cli.StringSliceFlag{Name: "to", Usage: "to `ADDRESS`"},
			&cli.BoolFlag{Name: "dry-run", Usage: "see `--time`"},
			&cli.BoolFlag{Name: "secret", Hidden: true},
		},
		Commands: []*cli.Command{
			{Name: "sub", Aliases: []string{"s"}, Usage: "do some", UsageText: "prog sub", Subcommands: []*cli.Command{{Name: "deep"}}},
			{Name: "hidden", Hidden: true},
		},
	}
	want := Program{
		Name: "prog", Usage: "do things", Synopsis: []string{"prog [-n N]", "prog sub"}, Text: "Does things.",
		Flags: []Flag{
			{Names: []string{"n"}, Value: "N", Usage: "do N things"},
			{Names: []string{"time", "t"}, Value: "TIME", Usage: "end after TIME", Default: "5m"},
			{Names: []string{"dir"}, Value: "VALUE", Usage: "work there", Default: "x", Env: []string{"DIR"}},
			{Names: []string{"to"}, Value: "ADDRESS", Usage: "to ADDRESS", Repeats: true},
			{Names: []string{"dry-run"}, Usage: "see --time"},
		},
		Commands: []Program{
			{Name: "sub", Aliases: []string{"s"}, Usage: "do some", Synopsis: []string{"prog sub"}, Commands: []Program{{Name: "deep"}}},
		},
	}
	assert.Same(t, Describe(app), want)
}
