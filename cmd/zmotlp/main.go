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

const description = `Follows the postoffice, and sends a trace of each finished message to an OpenTelemetry
collector, in the form that zmctl trace --otlp prints (docs/trace.md).

    zmotlp --config /etc/zmailer/zmailer.conf
    zmotlp --endpoint http://127.0.0.1:4318/v1/traces --percent 5

Set headers that the collector requires, such as a key, in the environment:
OTEL_EXPORTER_OTLP_HEADERS='authorization=Bearer%20SECRET'. While the collector does not
answer, up to 200 requests are kept and retried; then new ones replace the oldest. Messages
that finish while zmotlp is not running are not sent.

SIGHUP makes it read zmailer.conf again (docs/reload.md). A file that cannot be used leaves it as it
was, and raises an alarm.

Exit codes: 0 ended by a signal, 64 bad flags, 78 bad configuration or no postoffice.`

func main() {
	config.Main(&cli.App{
		Name:            "zmotlp",
		Usage:           "send traces of messages to OpenTelemetry",
		UsageText:       "zmotlp [--endpoint URL] [--percent N] [--addresses] [flags]",
		Description:     description,
		Flags:           append(config.Flags(), flags()...),
		HideHelpCommand: true,
		Action:          run,
	})
}

func flags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "endpoint", Value: "http://127.0.0.1:4318/v1/traces", EnvVars: []string{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"}, Usage: "send OTLP/HTTP in JSON to the collector at `URL`"},
		&cli.IntFlag{Name: "percent", Value: 100, Usage: "send `N` of 100 messages, chosen by their spool ID"},
		&cli.BoolFlag{Name: "addresses", Usage: "also send senders, recipients and the replies of hosts"},
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
	log, err := logging.New(c.App.ErrWriter, settings.LogFormat(), settings.String("LOGLEVEL", ""), "zmotlp")
	if err != nil {
		return cli.Exit(err, config.ExitConfig)
	}
	defer logging.Flush(log)
	hangups := config.Hangups()
	po, err := view.OpenPostOffice(settings)
	if err != nil {
		return err
	}
	e := &export.Exporter{Endpoint: endpoint.String(), Header: header, Client: &http.Client{Timeout: 10 * time.Second}, Percent: c.Int("percent"), Log: log}
	if err := e.Of(po, settings, c.Bool("addresses")); err != nil {
		return err
	}
	log.Info("started", "endpoint", endpoint.Redacted(), "percent", e.Percent, "postoffice", settings.PostOffice())
	done := make(chan struct{})
	go func() {
		defer close(done)
		followHangups(c, settings, log, hangups)
	}()
	e.Run(c.Context)
	<-done
	log.Info("stopped")
	return nil
}
