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

// openFilesFlag makes the program the helper process that opens files for another router.
const openFilesFlag = "open-files"

// enterSandbox checks the postoffice's file system and drops the router's privileges. The right
// to read files in closed directories goes to a helper process; gone is closed when that has
// ended, and nil if there is none.
func enterSandbox(settings *config.Config, cfg *router.Config, log *slog.Logger) (gone <-chan struct{}, err error) {
	if err := filesystem.Check(settings, log); err != nil {
		return nil, err
	}
	holds, err := confine.PlanFor("opener", settings).Holds()
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

// routeUntil runs the router. It exits, to be started again, when the helper process that
// opens files ends: without it users' .forward files seem unreadable.
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
		return cli.Exit("--"+openFilesFlag+": it must be started by a router: "+err.Error(), config.ExitUsage)
	}
	if _, err := confine.PlanFor("opener", settings).Enter(); err != nil {
		return settings.Invalid("DAEMONUSER", "cannot be used", err)
	}
	// The router ends this process when it is done. Not signal.Ignore, which a child would inherit.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	return closed.Serve(conn, closed.Policy{Lowest: closed.LowestUser("/etc/login.defs"), Forward: settings.Text("FORWARD", "~/.forward")})
}
