package scheduler

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"strings"
	"time"

	"zmailer/internal/config"
	"zmailer/internal/durable"
	"zmailer/internal/postoffice"
)

// Config is what the scheduler works by.
type Config struct {
	Dir         string // postoffice
	HashLevels  int
	Strict      bool // sync=strict
	Conf        *Conf
	ZConfig     string // path of zmailer.conf, for the agents; "" if there is none
	Hostname    string
	Postmaster  string // address that reports come from
	StopTimeout time.Duration
	Look        time.Duration // between looks at transport/
	Log         *slog.Logger

	restart time.Duration // before the first new start of an agent; 0: defaultRestart
}

// Defaults of Config.
const (
	DefaultStopTimeout = 30 * time.Second
	DefaultLook        = 15 * time.Second
	defaultRestart     = time.Second
)

// ConfigFrom makes a Config, but for Log, of zmailer.conf and the scheduler.conf
// beside it. Its errors are *config.Error.
func ConfigFrom(c *config.Config) (Config, error) {
	levels, err := c.Int("HASHLEVELS", 0)
	if err != nil {
		return Config{}, err
	}
	host, err := c.Hostname()
	if err != nil {
		return Config{}, err
	}
	conf, err := LoadConf(c)
	if err != nil {
		return Config{}, err
	}
	master := c.String("POSTMASTER", "postmaster")
	if !strings.Contains(master, "@") {
		master += "@" + host
	}
	return Config{
		Dir: c.PostOffice(), HashLevels: levels, Strict: c.String("SYNC", "normal") == "strict", Conf: conf, ZConfig: c.File,
		Hostname: host, Postmaster: master, StopTimeout: DefaultStopTimeout, Look: DefaultLook,
	}, nil
}

// LoadConf reads scheduler.conf, the built-in one if there is none. ${NAME} in a
// command is a variable of zmailer.conf or of the environment.
func LoadConf(c *config.Config) (*Conf, error) {
	text, from, err := c.Read("scheduler.conf")
	if err != nil {
		return nil, err
	}
	return ParseConf(from, text, func(name string) (string, bool) {
		if v := c.String(name, ""); v != "" {
			return v, true
		}
		return os.LookupEnv(name)
	})
}

// Run schedules the mail of a postoffice until ctx is done and running deliveries
// have ended, or StopTimeout is over. A second scheduler in the same postoffice gets
// durable.ErrLocked with the first one's pid (A1).
func Run(ctx context.Context, c Config) error {
	po, err := postoffice.OpenDir(c.Dir, c.HashLevels, c.Strict)
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
	release, err := exclusive(ctx, po)
	if err != nil {
		return err
	}
	for _, where := range c.Conf.NoEffect {
		c.Log.Warn("setting-without-effect", "setting", where)
	}
	c.Log.Info("started", "postoffice", c.Dir, "pid", os.Getpid(), "hashlevels", c.HashLevels)
	err = newEngine(c, po).run(ctx)
	if rerr := release(); rerr != nil {
		err = errors.Join(err, fmt.Errorf("stop: %w", rerr))
	}
	c.Log.Info("stopped")
	return err
}

// lockGrace is how long the lock of another scheduler is waited for: one that was
// killed while it started an agent leaves it to that process until its exec(2).
const lockGrace = time.Second

// exclusive takes the lock of the one scheduler.
func exclusive(ctx context.Context, po *postoffice.PostOffice) (release func() error, err error) {
	deadline := time.Now().Add(lockGrace)
	for {
		release, err = po.Exclusive("scheduler")
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
