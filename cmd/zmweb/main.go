// Command zmweb shows a postoffice to browsers. zmctl web starts it: what serves pages
// stays out of zmctl, which starts and is a daemon.
//
// It runs as the user that starts it, and can do what that user may in the postoffice.
// Pages read it by admin/view, and orders change it by admin/act, in this process.
package main

import (
	"context"

	"github.com/urfave/cli/v2"

	"zmailer/internal/admin/view"
	"zmailer/internal/postoffice/ledger"
	"zmailer/internal/run/config"
	"zmailer/internal/run/keys"
	"zmailer/internal/run/logging"
	"zmailer/internal/ui/web"
)

const description = `Serves web pages about the postoffice: the queue, threads, messages and their histories, the
traffic of the last hours, and the operations of operators; with --write operators can
change queued mail. zmctl web starts it (docs/web.md).

    zmweb --config /etc/zmailer/zmailer.conf
    zmweb --config /etc/zmailer/zmailer.conf --write --listen 127.0.0.1:8080

It listens on 127.0.0.1:2580 unless WEBLISTEN or --listen names another address; an
address that other machines can reach requires a certificate (WEBCERT, WEBKEY).

SIGHUP makes it read zmailer.conf again (docs/reload.md). Settings that cannot be used leave it as it was,
and raise an alarm.

Exit codes: 0 ended by a signal, 1 it cannot listen, 64 bad flags, 78 bad configuration or no
postoffice.`

func main() {
	config.Main(&cli.App{
		Name:            "zmweb",
		Usage:           "show the postoffice to a browser",
		UsageText:       "zmweb [--write] [--listen HOST:PORT] [--token-file FILE] [--accounts FILE] [flags]",
		Description:     description,
		Flags:           append(append(config.Flags(), flags()...), &cli.BoolFlag{Name: keys.Flag, Usage: keys.Usage}),
		HideHelpCommand: true,
		Action:          run,
	})
}

func run(c *cli.Context) error {
	if c.NArg() > 0 {
		return cli.Exit("no arguments are allowed; --help lists the flags", config.ExitUsage)
	}
	settings, err := config.FromCLI(c)
	if err != nil {
		return err
	}
	if c.Bool(keys.Flag) {
		return keys.Help(settings, "zmweb")
	}
	log, err := logging.New(c.App.ErrWriter, settings.LogFormat(), settings.String("LOGLEVEL", ""), "zmweb")
	if err != nil {
		return cli.Exit(err, config.ExitConfig)
	}
	defer logging.Flush(log)
	po, err := view.OpenPostOffice(settings)
	if err != nil {
		return err
	}
	hangups := config.Hangups()
	s := &site{c: c, log: log, dir: settings.PostOffice(), source: web.Open(po, settings.PostOffice(), settings)}
	defer s.source.Close()
	if err := s.keys(settings); err != nil {
		return err
	}
	s.samples, err = web.NewSamples(po.FS())
	if err != nil {
		log.Warn("samples-trouble", "reason", err)
	}
	page, err := s.use(settings)
	if err != nil {
		return err
	}
	defer s.entrance.Close()
	s.follow.Settle()
	defer s.follow.End()
	banner(c, s.conf, page, s.entrance.Addr(), s.dir)
	log.Info("started", "address", s.entrance.Addr().String(), "write", s.conf.Write, "postoffice", s.dir)
	err = serveWeb(c.Context, s.entrance, s, log, hangups, s.reload, func(ctx context.Context) {
		tail := ledger.NewTail(po, true)
		defer tail.Close()
		s.samples.Record(ctx, tail, s.source.Waiting, log)
	})
	log.Info("stopped")
	return err
}
