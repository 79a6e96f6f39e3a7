package scheduler

import (
	"errors"
	"fmt"
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
// beside it. Its error joins an *config.Error for each setting and line that cannot be used.
func ConfigFrom(c *config.Config) (engine.Config, error) {
	s := config.NewReader(c)
	host := s.Hostname()
	// It does not stay root, where the agent launcher does.
	root := rootStarts()
	first, err := conf.Load(c, root)
	s.Add(err)
	limits, err := alarm.ParseLimits(c.String("ALARMS", ""))
	s.Use("ALARMS", err)
	master := c.String("POSTMASTER", "postmaster")
	if !strings.Contains(master, "@") {
		master += "@" + host
	}
	out := engine.Config{
		Dir: c.PostOffice(), HashLevels: s.Int("HASHLEVELS", 0), Strict: c.String("SYNC", "normal") == "strict", Conf: first, ZConfig: c.File,
		Hostname: host, Postmaster: master, StopTimeout: engine.DefaultStopTimeout, Look: s.Duration("SCHEDULERPOLL", engine.DefaultLook),
		KeepRemoved: s.Duration("REMOVEDKEEP", defaultKeepRemoved), Alarms: limits, MonitorEvery: engine.DefaultMonitorEvery, Resolver: c.String("RESOLVER", ""),
		Metrics: metrics.New("scheduler", s.Metrics("scheduler")),
		Reread: engine.Reread{File: c.Path("scheduler.conf"), Read: func() (*conf.File, error) {
			next, err := conf.Load(c, root)
			if err == nil && first.Name == c.Path("scheduler.conf") && next.Name != first.Name {
				return nil, &config.Error{File: first.Name, Reason: "it is gone; the built-in one is used by a start alone"}
			}
			return next, err
		}},
	}
	return out, s.Err()
}

// LauncherVariable names, in the environment, the socket of an agent launcher that runs
// already.
const LauncherVariable = "AGENTSTARTER"

// LauncherHere is an entry of the environment for a check that root asks for and another user
// makes: a scheduler that root starts has a launcher, which stays root.
const LauncherHere = LauncherVariable + "=here"

// rootStarts reports whether agents are started by root: the scheduler, or its launcher.
func rootStarts() bool { return os.Geteuid() == 0 || os.Getenv(LauncherVariable) != "" }

// CheckConfig returns what is wrong with the configuration, and warnings of what is allowed and
// hardly meant. policy checks a clause's tls=, as its agent will.
func CheckConfig(c *config.Config, policy func(string) error) error {
	cfg, err := ConfigFrom(c)
	if cfg.Conf == nil {
		return c.Locate(err)
	}
	errs, warnings := cfg.Conf.Check(c, policy)
	return c.Locate(errors.Join(err, errors.Join(errs...), errors.Join(warnings...)))
}

// Describe says how many clauses a configuration has.
func Describe(c *config.Config) string {
	f, err := conf.Load(c, rootStarts())
	if err != nil {
		return ""
	}
	return fmt.Sprintf("%s: %d clauses; the configuration can be used", f.Name, f.Clauses())
}
