package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/coreos/go-systemd/v22/activation"
	"github.com/urfave/cli/v2"

	"zmailer/internal/disk/filesystem"
	"zmailer/internal/run/config"
	"zmailer/internal/run/confine"
	"zmailer/internal/run/helper"
	"zmailer/internal/run/keys"
	"zmailer/internal/run/logging"
	"zmailer/internal/run/sdnotify"
	"zmailer/internal/stage/scheduler"
	"zmailer/internal/stage/scheduler/agents"
	"zmailer/internal/stage/scheduler/engine"
)

// enterSandbox looks at the postoffice's file system and has the scheduler give up root: the
// launcher, which starts agents as other users, runs beside it
// already, or is started first. A scheduler without either starts its agents itself and
// keeps what it has.
func enterSandbox(settings *config.Config, cfg *engine.Config) error {
	if err := filesystem.Check(settings, cfg.Log); err != nil {
		return err
	}
	socket := os.Getenv(scheduler.LauncherVariable)
	a, err := confine.PlanFor("scheduler", settings).Account()
	switch {
	case err != nil:
		return settings.Invalid("DAEMONUSER", "cannot be used", err)
	case socket == "" && (a == nil || os.Geteuid() != 0):
		return nil
	}
	conn := (*net.UnixConn)(nil)
	if socket != "" {
		conn, err = net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: socket, Net: "unixpacket"})
	} else {
		conn, err = helper.Start("--start-agents", settings)
	}
	if err != nil {
		return fmt.Errorf("start agents: %w", err)
	}
	if cfg.Launcher, err = agents.NewLauncherClient(conn); err != nil {
		if refused := (*agents.LauncherRefusal)(nil); errors.As(err, &refused) {
			return cli.Exit(err, config.ExitConfig)
		}
		return err // it may be gone, or busy, for a moment: the supervisor starts the scheduler again
	}
	if cfg.Keys, err = keys.Start(settings, "ta-smtp"); err != nil {
		return err
	}
	return confine.Enter("scheduler", settings, cfg.Log)
}

// startAgents serves the scheduler that has started us, or those that connect to the
// socket that systemd has passed.
func startAgents(ctx context.Context, settings *config.Config) error {
	p := confine.PlanFor("launcher", settings)
	a, err := p.Account()
	switch {
	case err != nil:
		return settings.Invalid("DAEMONUSER", "cannot be used", err)
	case a == nil || os.Geteuid() != 0:
		return cli.Exit("--start-agents is for root, with DAEMONUSER in zmailer.conf", config.ExitUsage)
	}
	if _, err := p.Enter(); err != nil {
		return settings.Invalid("DAEMONUSER", "cannot be used", err)
	}
	launcher := func() *agents.Launcher { return scheduler.NewLauncher(settings, a.Name) }
	listeners, err := activation.Listeners()
	if err != nil || len(listeners) > 1 {
		return cli.Exit(fmt.Errorf("want one socket of systemd: %w", err), config.ExitConfig)
	}
	if len(listeners) == 1 {
		log, err := logging.New(os.Stderr, settings.LogFormat(), settings.String("LOGLEVEL", ""), "scheduler")
		if err != nil {
			return cli.Exit(err, config.ExitConfig)
		}
		return serveSchedulers(ctx, launcher, listeners[0], a.UID, sdnotify.FromEnvironment(log))
	}
	// The scheduler ends us, when its agents are done.
	// Not signal.Ignore: agents would take that over.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	conn, err := helper.Inherited()
	if err != nil {
		return cli.Exit("--start-agents: no scheduler has started this: "+err.Error(), config.ExitUsage)
	}
	return launcher().Serve(conn)
}

// serveSchedulers serves root and the user of the daemons. It ends when the schedulers that
// it serves have.
func serveSchedulers(ctx context.Context, launcher func() *agents.Launcher, l net.Listener, uid int, service *sdnotify.Service) error {
	context.AfterFunc(ctx, func() { _ = l.Close() })
	// The watchdog wakes the loop.
	waits, ok := l.(*net.UnixListener)
	if !ok {
		return cli.Exit("--start-agents: systemd's socket is no Unix socket", config.ExitConfig)
	}
	defer service.Watch(func() { _ = waits.SetDeadline(time.Now()) })()
	service.Ready("starts agents for the scheduler")
	var all sync.WaitGroup
	defer all.Wait()
	served := places{}
	for {
		conn, err := l.Accept()
		switch {
		case ctx.Err() != nil:
			service.Stopping()
			return nil
		case errors.Is(err, os.ErrDeadlineExceeded):
			if err := waits.SetDeadline(time.Time{}); err != nil {
				return fmt.Errorf("wait for the scheduler: %w", err)
			}
			service.Alive()
			continue
		case err != nil:
			return fmt.Errorf("wait for the scheduler: %w", err)
		}
		u, ok := conn.(*net.UnixConn)
		if !ok || !mayAsk(u, uid) {
			complain(conn.Close())
			continue
		}
		p := &place{conn: u, s: launcher()}
		if !served.take(p) {
			complain(errors.Join(errors.New("too many connections"), u.Close()))
			continue
		}
		all.Go(func() {
			// The next scheduler finds out by itself what this one left.
			err := p.s.Serve(u)
			if errors.Is(err, net.ErrClosed) {
				err = errors.New("too many connections: one that was not used was left")
			}
			complain(err)
			served.leave(p)
		})
	}
}

func complain(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "scheduler --start-agents:", err)
	}
}

// mayAsk reports whether the process at the other end is root's or that of the daemons' user.
func mayAsk(conn *net.UnixConn, uid int) bool {
	peer, ok := helper.PeerUID(conn)
	return ok && (peer == 0 || peer == uid)
}
