package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"zmailer/internal/disk/durable"
	"zmailer/internal/disk/fenced"
	"zmailer/internal/postoffice"
	"zmailer/internal/postoffice/alarm"
	"zmailer/internal/run/config"
	"zmailer/internal/run/keys"
	"zmailer/internal/run/lease"
	"zmailer/internal/run/metrics"
	manager "zmailer/internal/run/sdnotify"
	"zmailer/internal/stage/scheduler/agents"
	"zmailer/internal/stage/scheduler/conf"
)

// Config is what the scheduler works by.
type Config struct {
	Dir         string // postoffice
	HashLevels  int
	Strict      bool // sync=strict
	Conf        *conf.File
	ZConfig     string // path of zmailer.conf, for the agents; "" if there is none
	Hostname    string
	Postmaster  string // address that reports come from
	StopTimeout time.Duration
	Look        time.Duration // between looks at transport/
	Log         *slog.Logger
	Reread      Reread
	Service     *manager.Service       // is notified of our state; nil: none is
	Launcher    *agents.LauncherClient // starts agents that run as other users; nil: the scheduler does
	Keys        *keys.Client           // opens keys for agents; nil: they can read them, or cannot
	Start       Start

	// Resolver is the host:port of a name server, for channel hold; "": those of
	// /etc/resolv.conf.
	Resolver string
	// KeepRemoved is how long messages that an operator removed stay in removed/; 0: for ever.
	KeepRemoved time.Duration

	// Alarms are the limits beyond which an alarm is raised; MonitorEvery is the time between two
	// checks.
	Alarms       alarm.Limits
	MonitorEvery time.Duration

	// Filter is the next hop of CONTENTFILTER; nil: it is not set.
	Filter *ContentFilter

	// Metrics counts; nil: nothing does.
	Metrics *metrics.Set

	// Lease is that of this machine in a cluster; nil: it is in none.
	Lease *lease.Page

	// Alone is called when this is the one scheduler of the postoffice; may be nil.
	Alone func()

	tuning tuning
}

// Start are the options of a start, as ZMailer's scheduler has them (M22).
type Start struct {
	AtOnce      int    // -E: specifications that are read at one go; 0: as it suits
	ReadFirst   bool   // -S: all of transport/ is read before the first delivery
	Freeze      bool   // -F: nothing is started or given up
	OnlyChannel string // -p: with OnlyHost the one thread that is served, "*" is all; "": all are
	OnlyHost    string
	Strict      bool // do not start while unfinished files are in public/ (A7)
}

// tuning is what tests change; zero values are what is usual.
type tuning struct {
	listing func()        // called before names that were listed are given to the engine
	alone   time.Duration // how long a specification waits for its message: aloneGrace
	deaf    time.Duration // how long an agent may leave a delivery unread
	locked  time.Duration // before the first second look at what others have locked: lockedAfter
	restart time.Duration // before the first new start of an agent
	clocks  clocks
	spawner agents.Spawner // starts agents: processes
}

// Defaults of Config.
const (
	DefaultStopTimeout = 30 * time.Second
	DefaultLook        = 15 * time.Second
)

// Run schedules the mail of a postoffice until ctx is done and running deliveries
// have ended, or StopTimeout is over. A second scheduler in the same postoffice gets
// durable.ErrLocked with the first one's pid (A1). In a cluster it works while this machine has its
// lease.
func Run(ctx context.Context, c Config) error {
	return c.Lease.Run(ctx, c.Log, func(ctx context.Context) error { return run(ctx, c) })
}

func run(ctx context.Context, c Config) error {
	// Results are not recorded past the deadline either: a deferral would hide a delivery in doubt
	// from the machine that serves the postoffice next.
	po, err := postoffice.OpenLeased(c.Dir, c.HashLevels, c.Strict, c.Lease, fenced.Names|fenced.Content)
	if errors.Is(err, postoffice.ErrNotPostoffice) || errors.Is(err, postoffice.ErrCrossDevice) || errors.Is(err, fs.ErrNotExist) {
		return &config.Error{File: c.Dir, Reason: "cannot be used as the postoffice", Err: err}
	}
	if err != nil {
		return err
	}
	defer func() {
		if f, ok := po.FS().(io.Closer); ok {
			// Only the directory's descriptor: there is nothing to lose.
			_ = f.Close()
		}
	}()
	if why, frozen := po.Frozen(); frozen {
		return &config.Error{File: filepath.Join(c.Dir, postoffice.FreezeFlag),
			Reason: "the service is frozen (" + why + "); zmctl thaw-service lets it start"}
	}
	release, err := exclusive(ctx, po)
	if err != nil {
		return err
	}
	if err := settleUnfinished(c, po); err != nil {
		return errors.Join(err, release())
	}
	if c.Alone != nil {
		c.Alone()
	}
	for _, where := range c.Conf.NoEffect {
		c.Log.Warn("setting-without-effect", "setting", where)
	}
	c.Log.Info("started", "postoffice", c.Dir, "pid", os.Getpid(), "hashlevels", c.HashLevels)
	ctx, launcherGone := c.withLauncher(ctx)
	err = newEngine(c, po).run(ctx)
	err = errors.Join(err, launcherGone())
	if rerr := release(); rerr != nil {
		err = errors.Join(err, fmt.Errorf("stop: %w", rerr))
	}
	c.Log.Info("stopped")
	return err
}

// withLauncher ends ctx when the agent launcher does, and reports whether that was so.
func (c *Config) withLauncher(ctx context.Context) (context.Context, func() error) {
	if c.Launcher == nil {
		return ctx, func() error { return nil }
	}
	ctx, cancel := context.WithCancelCause(ctx)
	stop := make(chan struct{})
	go func() {
		select {
		case <-c.Launcher.Gone():
			cancel(agents.ErrLauncher)
		case <-stop:
		}
	}()
	return ctx, func() error {
		close(stop)
		if cause := context.Cause(ctx); errors.Is(cause, agents.ErrLauncher) {
			return cause
		}
		cancel(nil)
		return nil
	}
}

// lockGrace is how long the lock of another scheduler is waited for: one that was
// killed while it started an agent leaves it to that process until its exec(2).
const lockGrace = time.Second

// exclusive takes the lock of the one scheduler.
func exclusive(ctx context.Context, po *postoffice.PostOffice) (release func() error, err error) {
	deadline := time.Now().Add(lockGrace)
	for {
		release, err = po.Owners.Exclusive("scheduler")
		if !errors.Is(err, durable.ErrLocked) || time.Now().After(deadline) {
			return release, err
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(lockGrace / 20):
		}
	}
}

// settleUnfinished quarantines unfinished files in public/, once, at the
// start (A7). With Start.Strict it refuses instead, as a *config.Error.
func settleUnfinished(c Config, po *postoffice.PostOffice) error {
	done, err := po.Submissions.SettleUnfinished(time.Now(), postoffice.BootTime(), c.Start.Strict)
	if unfinished := (*postoffice.UnfinishedError)(nil); errors.As(err, &unfinished) {
		return &config.Error{File: c.Dir, Reason: "the scheduler does not start", Err: err}
	}
	for _, d := range done {
		c.Log.Warn("recovered", "name", d.Name, "action", d.Action, "reason", d.Detail)
	}
	if err != nil {
		// Mail does not depend on it.
		c.Log.Warn("recovered", "name", postoffice.Public, "action", postoffice.Unreadable, "reason", err)
	}
	return nil
}
