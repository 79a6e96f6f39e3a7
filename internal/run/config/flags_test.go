package config

import (
	"strings"
	"testing"

	"github.com/urfave/cli/v2"

	"zmailer/internal/run/assert"
)

func TestFlagsMayStandBehindArguments(t *testing.T) {
	app := &cli.App{
		Flags: []cli.Flag{&cli.StringFlag{Name: "config"}, &cli.BoolFlag{Name: "quiet"}},
		Commands: []*cli.Command{{Name: "hold", Flags: []cli.Flag{
			&cli.BoolFlag{Name: "yes", Aliases: []string{"y"}}, &cli.StringFlag{Name: "reason"}, &cli.StringSliceFlag{Name: "to"}}}},
	}
	tests := map[string]struct{ args, want string }{
		"flags first":           {"hold --yes S1", "hold --yes S1"},
		"flags behind":          {"hold S1 --yes", "hold --yes S1"},
		"between":               {"hold S1 -y S2 --reason why --to=a S3", "hold -y --reason why --to=a S1 S2 S3"},
		"flags of the program":  {"--config f --quiet hold S1 --yes", "--config f --quiet hold --yes S1"},
		"help":                  {"hold S1 --help", "hold --help S1"},
		"after --":              {"hold S1 -- --yes", "hold S1 -- --yes"},
		"an unknown flag":       {"hold S1 --now --yes", "hold S1 --now --yes"},
		"a value is missing":    {"hold S1 --reason", "hold S1 --reason"},
		"an unknown command":    {"held S1 --yes", "held S1 --yes"},
		"an unknown one before": {"--conf f hold S1 --yes", "--conf f hold S1 --yes"},
		"a lone dash":           {"hold - --yes", "hold --yes -"},
		"no command":            {"--config f", "--config f"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			args := append([]string{"zmctl"}, strings.Fields(tt.args)...)
			assert.Equal(t, strings.Join(flagsFirst(app, args)[1:], " "), tt.want)
		})
	}
}
