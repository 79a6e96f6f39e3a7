// Command zmotlp sends the traces of messages that have ended to a collector of
// OpenTelemetry. zmctl export starts it: what speaks HTTP stays out of zmctl.
//
// It keeps nothing: what ends while it does not run is not sent.
package main

import (
	"net/http"
	"net/url"
	"os"
	"time"

	"github.com/urfave/cli/v2"

	"zmailer/internal/admin/otlp/export"
	"zmailer/internal/admin/view"
	"zmailer/internal/run/config"
	"zmailer/internal/run/logging"
)

const description = `Follows the postoffice, and sends the life of each message that has ended to a collector of
OpenTelemetry, as zmctl trace --otlp prints it. docs/trace.md has more.

    zmotlp --config /etc/zmailer/zmailer.conf
    zmotlp --endpoint http://127.0.0.1:4318/v1/traces --percent 5

Headers that the collector wants, with a key for instance, stand in the environment, as in
OTEL_EXPORTER_OTLP_HEADERS='authorization=Bearer%20SECRET'. A collector that does not answer
is asked again, for up to 200 requests; what comes then takes the place of the oldest. What
ends while zmotlp does not run is not sent.

Exit codes: 0 ended by a signal, 64 bad flags, 78 bad configuration or no postoffice.`

func main() {
	config.Main(&cli.App{
		Name:            "zmotlp",
		Usage:           "send the lives of messages to OpenTelemetry",
		UsageText:       "zmotlp [--endpoint URL] [--percent N] [--addresses] [flags]",
		Description:     description,
		Flags:           append(config.Flags(), flags()...),
		HideHelpCommand: true,
		Action:          run,
	})
}

func flags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "endpoint", Value: "http://127.0.0.1:4318/v1/traces", EnvVars: []string{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"}, Usage: "the collector takes OTLP/HTTP in JSON at `URL`"},
		&cli.IntFlag{Name: "percent", Value: 100, Usage: "`N` of 100 messages are sent, chosen by their spool ID"},
		&cli.BoolFlag{Name: "addresses", Usage: "send senders, recipients and the answers of hosts, too"},
	}
}

func run(c *cli.Context) error {
	refuse := func(text string) error { return cli.Exit(text, config.ExitUsage) }
	endpoint, err := url.Parse(c.String("endpoint"))
	switch {
	case c.NArg() > 0:
		return refuse("no arguments are allowed; --help lists the flags")
	case err != nil || endpoint.Host == "" || endpoint.Scheme != "http" && endpoint.Scheme != "https":
		return refuse("--endpoint " + c.String("endpoint") + ": it must be like http://127.0.0.1:4318/v1/traces")
	case c.Int("percent") < 1 || c.Int("percent") > 100:
		return refuse("--percent: a number from 1 to 100")
	}
	header, err := headers(os.Getenv("OTEL_EXPORTER_OTLP_HEADERS"))
	if err != nil {
		return refuse(err.Error())
	}
	settings, err := config.FromCLI(c)
	if err != nil {
		return err
	}
	log, err := logging.New(c.App.ErrWriter, settings.String("LOG", ""), settings.String("LOGLEVEL", ""), "zmotlp")
	if err != nil {
		return cli.Exit(err, config.ExitConfig)
	}
	defer logging.Flush(log)
	po, err := view.OpenPostOffice(settings)
	if err != nil {
		return err
	}
	e := &export.Exporter{Endpoint: endpoint.String(), Header: header, Client: &http.Client{Timeout: 10 * time.Second}, Percent: c.Int("percent"), Log: log}
	if err := e.Of(po, settings, c.Bool("addresses")); err != nil {
		return err
	}
	log.Info("started", "endpoint", endpoint.Redacted(), "percent", e.Percent, "postoffice", settings.PostOffice())
	e.Run(c.Context)
	log.Info("stopped")
	return nil
}
