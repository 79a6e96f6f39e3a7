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
		Name: "export", Usage: "send what happens to another system", UsageText: "zmctl export otlp [flags]",
		Description: `Follows the postoffice and sends on what becomes of its mail. There is one form so far:

    zmctl export otlp --endpoint http://127.0.0.1:4318/v1/traces`,
		Subcommands: []*cli.Command{{
			Name: "otlp", Usage: "send the life of each message that has ended to OpenTelemetry",
			UsageText: "zmctl export otlp [--endpoint URL] [--percent N] [--addresses]",
			Description: `Sends what zmctl trace --otlp prints of each message that ends from now on, until it is
interrupted. The daemons know nothing of it, and mail does not wait for it. Senders,
recipients and the answers of hosts are sent with --addresses alone.

    zmctl export otlp --endpoint http://127.0.0.1:4318/v1/traces
    zmctl export otlp --percent 5 --addresses

OTEL_EXPORTER_OTLP_TRACES_ENDPOINT in the environment is the endpoint if --endpoint is not
given, OTEL_EXPORTER_OTLP_HEADERS what the collector wants in the header. It is the program
zmotlp, which this command becomes.

Exit codes: 0 ended by a signal, 1 it cannot follow, 64 bad flags, 71 a program is missing,
78 bad configuration or no postoffice.`,
			Flags: []cli.Flag{
				&cli.StringFlag{Name: "endpoint", Usage: "the collector takes OTLP/HTTP in JSON at `URL`; without it at http://127.0.0.1:4318/v1/traces"},
				&cli.IntFlag{Name: "percent", Value: 100, Usage: "`N` of 100 messages are sent, chosen by their spool ID"},
				&cli.BoolFlag{Name: "addresses", Usage: "send senders, recipients and the answers of hosts, too"},
			},
			Action: func(c *cli.Context) error { return become(c, "zmotlp") },
		}},
		Action: needsVerb,
	}
}

// become makes this process another program of ours, which is given the command's flags.
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
