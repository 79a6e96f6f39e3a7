package scheduler

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"zmailer/internal/postoffice/alarm"
	"zmailer/internal/run/config"
	"zmailer/internal/run/metrics"
	"zmailer/internal/stage/scheduler/conf"
	"zmailer/internal/stage/scheduler/engine"
)

// defaultKeepRemoved is how long messages that an operator removed stay in removed/.
const defaultKeepRemoved = 3 * 24 * time.Hour

// ConfigFrom makes a Config, but for Log, of zmailer.conf and the scheduler.conf
// beside it. Its errors are *config.Error.
func ConfigFrom(c *config.Config) (engine.Config, error) {
	levels, err := c.Int("HASHLEVELS", 0)
	if err != nil {
		return engine.Config{}, err
	}
	host, err := c.Hostname()
	if err != nil {
		return engine.Config{}, err
	}
	// It does not stay root, where the agent launcher does.
	root := rootStarts()
	first, err := conf.Load(c, root)
	if err != nil {
		return engine.Config{}, err
	}
	look, err := c.Duration("SCHEDULERPOLL", engine.DefaultLook)
	if err != nil {
		return engine.Config{}, err
	}
	keep, err := c.Duration("REMOVEDKEEP", defaultKeepRemoved)
	if err != nil {
		return engine.Config{}, err
	}
	limits, err := alarm.ParseLimits(c.String("ALARMS", ""))
	if err != nil {
		return engine.Config{}, c.Invalid("ALARMS", "cannot be used", err)
	}
	place, err := c.Metrics("scheduler")
	if err != nil {
		return engine.Config{}, err
	}
	master := c.String("POSTMASTER", "postmaster")
	if !strings.Contains(master, "@") {
		master += "@" + host
	}
	return engine.Config{
		Dir: c.PostOffice(), HashLevels: levels, Strict: c.String("SYNC", "normal") == "strict", Conf: first, ZConfig: c.File,
		Hostname: host, Postmaster: master, StopTimeout: engine.DefaultStopTimeout, Look: look,
		KeepRemoved: keep, Alarms: limits, MonitorEvery: engine.DefaultMonitorEvery, Resolver: c.String("RESOLVER", ""),
		Metrics: metrics.New("scheduler", place),
		Reread: engine.Reread{File: c.Path("scheduler.conf"), Read: func() (*conf.File, error) {
			next, err := conf.Load(c, root)
			if err == nil && first.Name == c.Path("scheduler.conf") && next.Name != first.Name {
				return nil, &config.Error{File: first.Name, Reason: "it is gone; the built-in one is used by a start alone"}
			}
			return next, err
		}},
	}, nil
}

// LauncherVariable names, in the environment, the socket of an agent launcher that runs
// already.
const LauncherVariable = "AGENTSTARTER"

// rootStarts reports whether agents are started by root: the scheduler, or its launcher.
func rootStarts() bool { return os.Geteuid() == 0 || os.Getenv(LauncherVariable) != "" }

// CheckConfig writes what is wrong with the configuration, and what is allowed and hardly
// meant, a line each with file, line and column. policy checks a clause's tls=, as its
// agent will. It reports whether the configuration can be used.
func CheckConfig(c *config.Config, policy func(string) error, out io.Writer) bool {
	cfg, err := ConfigFrom(c)
	errs := conf.Errors(err)
	if err == nil {
		var warnings []error
		errs, warnings = cfg.Conf.Check(c, policy)
		for _, w := range warnings {
			fmt.Fprintln(out, w)
		}
	}
	for _, err := range errs {
		fmt.Fprintln(out, err)
	}
	if len(errs) > 0 {
		return false
	}
	fmt.Fprintf(out, "%s: %d clauses; the configuration can be used\n", cfg.Conf.Name, cfg.Conf.Clauses())
	return true
}
