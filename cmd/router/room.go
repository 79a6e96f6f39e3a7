package main

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/urfave/cli/v2"

	"zmailer/internal/disk/filesystem"
	"zmailer/internal/run/config"
	"zmailer/internal/run/confine"
	"zmailer/internal/run/helper"
	"zmailer/internal/stage/router"
	"zmailer/internal/stage/router/closed"
)

// openFilesFlag has the program be the one that opens files for another router.
const openFilesFlag = "open-files"

// enterRoom looks at the postoffice's file system and has the router give up what it does not need. The right to read files in closed
// directories goes to a process of its own; gone is closed when that has ended, nil: there is
// none.
func enterRoom(settings *config.Config, cfg *router.Config, log *slog.Logger) (gone <-chan struct{}, err error) {
	if err := filesystem.Check(settings, log); err != nil {
		return nil, err
	}
	holds, err := confine.PlanFor("reader", settings).Holds()
	if err != nil {
		return nil, settings.Invalid("DAEMONUSER", "cannot be used", err)
	}
	if holds {
		conn, err := helper.Start("--"+openFilesFlag, settings)
		if err != nil {
			return nil, err
		}
		c := closed.NewClient(conn)
		cfg.Rules.Closed, gone = c, c.Gone()
	}
	return gone, confine.Enter("router", settings, log)
}

// routeUntil runs the router. Without the process that opens files it would take users'
// .forward files for such that cannot be read: it ends, to be started again.
func routeUntil(ctx context.Context, gone <-chan struct{}, cfg router.Config) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if gone != nil {
		go func() {
			select {
			case <-gone:
				cancel(closed.ErrGone)
			case <-ctx.Done():
			}
		}()
	}
	err := router.Run(ctx, cfg)
	if err == nil && errors.Is(context.Cause(ctx), closed.ErrGone) {
		err = closed.ErrGone
	}
	return err
}

// openFiles serves the router that has started us.
func openFiles(settings *config.Config) error {
	conn, err := helper.Inherited()
	if err != nil {
		return cli.Exit("--"+openFilesFlag+": no router has started this: "+err.Error(), config.ExitUsage)
	}
	if _, err := confine.PlanFor("reader", settings).Enter(); err != nil {
		return settings.Invalid("DAEMONUSER", "cannot be used", err)
	}
	// The router ends us, when it is done.
	// Not signal.Ignore: nothing is started here, but who does so would have it, too.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	return closed.Serve(conn, closed.Policy{Lowest: closed.LowestUser("/etc/login.defs"), Forward: settings.Text("FORWARD", "~/.forward")})
}
