package main

import (
	"fmt"
	"syscall"

	"github.com/urfave/cli/v2"

	"zmailer/internal/admin/service"
	"zmailer/internal/run/config"
)

func exportCommand() *cli.Command {
	return &cli.Command{
		Name: "export", Usage: "send events to another system", UsageText: "zmctl export otlp [flags]",
		Description: `Follows the postoffice and sends the events of its mail to another system. OTLP is the only
format:

    zmctl export otlp --endpoint http://127.0.0.1:4318/v1/traces`,
		Subcommands: []*cli.Command{{
			Name: "otlp", Usage: "send a trace of each finished message to OpenTelemetry",
			UsageText: "zmctl export otlp [--endpoint URL] [--percent N] [--addresses]",
			Description: `Sends the output of zmctl trace --otlp for each message that finishes from now on, until it
is interrupted. It does not affect the daemons or the mail. Senders, recipients and the
replies of hosts are sent only with --addresses.

    zmctl export otlp --endpoint http://127.0.0.1:4318/v1/traces
    zmctl export otlp --percent 5 --addresses

Without --endpoint, OTEL_EXPORTER_OTLP_TRACES_ENDPOINT in the environment is the endpoint.
OTEL_EXPORTER_OTLP_HEADERS contains headers that the collector requires. This command
executes the program zmotlp.

Exit codes: 0 ended by a signal, 1 it cannot read the postoffice, 64 bad flags, 71 a program
is missing, 78 bad configuration or no postoffice.`,
			Flags: []cli.Flag{
				&cli.StringFlag{Name: "endpoint", Usage: "send OTLP/HTTP in JSON to the collector at `URL` instead of http://127.0.0.1:4318/v1/traces"},
				&cli.IntFlag{Name: "percent", Value: 100, Usage: "send `N` of 100 messages, chosen by their spool ID"},
				&cli.BoolFlag{Name: "addresses", Usage: "also send senders, recipients and the replies of hosts"},
			},
			Action: func(c *cli.Context) error { return become(c, "zmotlp") },
		}},
		Action: needsVerb,
	}
}

// become executes another program of this system with the flags of the command.
func become(c *cli.Context, name string) error {
	if err := noArguments(c); err != nil {
		return err
	}
	settings, err := config.FromCLI(c)
	if err != nil {
		return err
	}
	path, err := service.Program(name)
	if err != nil {
		return cli.Exit(err, config.ExitOSErr)
	}
	args := append([]string{name}, logFlags(c)...)
	for _, f := range c.Command.Flags {
		flag := f.Names()[0]
		if value := fmt.Sprint(c.Value(flag)); c.IsSet(flag) {
			args = append(args, "--"+flag+"="+value)
		}
	}
	if err := syscall.Exec(path, args, service.Environment(settings)); err != nil {
		return fmt.Errorf("start %s: %w", path, err)
	}
	return nil
}
