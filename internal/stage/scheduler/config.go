package scheduler

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"zmailer/internal/postoffice/alarm"
	"zmailer/internal/run/config"
	"zmailer/internal/run/lease"
	"zmailer/internal/run/metrics"
	"zmailer/internal/stage/scheduler/conf"
	"zmailer/internal/stage/scheduler/engine"
	"zmailer/internal/stage/scheduler/store"
	"zmailer/internal/table/text"
)

// defaultKeepRemoved is how long messages that an operator removed stay in removed/.
const defaultKeepRemoved = 3 * 24 * time.Hour

// Follower reads zmailer.conf again, as a lastgood.Follower does.
type Follower interface {
	Read() (*config.Config, error) // Accept, Refuse or Leave follows
	Accept(waiting ...string) (attrs []any)
	Refuse(err error)
	Leave(err error) // another file, which has an alarm of its own, cannot be used
}

// ConfigFrom makes a Config, but for Log, of zmailer.conf and the scheduler.conf
// beside it. Its error joins an *config.Error for each setting and line that cannot be used.
func ConfigFrom(c *config.Config) (engine.Config, error) {
	s := config.NewReader(c)
	first, err := loadConf(c, rootStarts(), nil)
	s.Add(err)
	out := engine.Config{
		Dir: c.PostOffice(), HashLevels: s.Int("HASHLEVELS", 0), Strict: c.String("SYNC", "normal") == "strict", Conf: first, ZConfig: c.File,
		StopTimeout: engine.DefaultStopTimeout, Look: lookEvery(s), MonitorEvery: engine.DefaultMonitorEvery,
		Metrics: metrics.New("scheduler", s.Metrics("scheduler")), Reread: engine.Reread{File: c.Path("scheduler.conf")},
	}
	out.Lease = lease.Use(s)
	var site store.Site
	site, out.Alarms, out.Filter = changeable(c, s)
	out.Hostname, out.Postmaster, out.Resolver, out.KeepRemoved = site.Hostname, site.Postmaster, site.Resolver, site.KeepRemoved
	return out, s.Err()
}

// loadConf reads scheduler.conf. root reports whether agents are started by root; first is the
// one of the start; nil: this is the start.
func loadConf(c *config.Config, root bool, first *conf.File) (*conf.File, error) {
	f, err := conf.Load(c, root)
	if err == nil && first != nil && first.Name == c.Path("scheduler.conf") && f.Name != first.Name {
		err = &config.Error{File: first.Name, Reason: "it is gone; the built-in one is used by a start alone"}
	}
	note(c, f, err, first != nil)
	return f, err
}

// note has the settings' Keeper raise an alarm about a scheduler.conf that cannot be used, or end
// it. held: the one before stays in use; a start takes no copy.
func note(c *config.Config, f *conf.File, err error, held bool) {
	path := c.Path("scheduler.conf")
	if k := c.Keeper(); k != nil && path != "" {
		switch {
		case err != nil:
			k.Bad(path, err, held)
		case f.Name == path:
			k.Good(path, []byte(f.Text), 0, nil)
		default:
			k.Good(path, nil, 0, nil)
		}
	}
}

func lookEvery(s *config.Reader) time.Duration {
	return s.Duration("SCHEDULERPOLL", engine.DefaultLook)
}

// changeable reads the settings that a reload may change.
func changeable(c *config.Config, s *config.Reader) (store.Site, alarm.Limits, *engine.ContentFilter) {
	host := s.Hostname()
	limits, err := alarm.ParseLimits(c.String("ALARMS", ""))
	s.Use("ALARMS", err)
	master := c.String("POSTMASTER", "postmaster")
	if !strings.Contains(master, "@") {
		master += "@" + host
	}
	return store.Site{Hostname: host, Postmaster: master, Resolver: c.String("RESOLVER", ""), KeepRemoved: s.Duration("REMOVEDKEEP", defaultKeepRemoved)}, limits, contentFilter(c)
}

// contentFilter returns the next hop of CONTENTFILTER; the router reports what is wrong with it.
func contentFilter(c *config.Config) *engine.ContentFilter {
	to, err := text.ParseFilter(c.String("CONTENTFILTER", ""))
	if err != nil || to.Host == "" {
		return nil
	}
	return engine.NewContentFilter(c.Keeper(), to.Channel, to.Host)
}

// Reread returns what reads the configuration again for a scheduler that was started with
// settings: scheduler.conf when it has changed, and zmailer.conf, too, when that is asked for.
// It is called while the scheduler has the rights that it was started with.
func Reread(settings *config.Config, first *conf.File, follow Follower) func(asked bool) (*engine.Renewal, error) {
	// It does not stay root, where the agent launcher does.
	root := rootStarts()
	return func(asked bool) (*engine.Renewal, error) {
		c := settings
		if asked && settings.File != "" {
			var err error
			if c, err = follow.Read(); err != nil {
				follow.Refuse(err)
				return nil, nil
			}
		}
		next, err := loadConf(c, root, first)
		if err != nil {
			if c != settings {
				follow.Leave(err)
			}
			return nil, err
		}
		out := &engine.Renewal{Conf: next}
		if c == settings {
			return out, nil
		}
		s := config.NewReader(c)
		site, limits, filter := changeable(c, s)
		out.Look = lookEvery(s)
		if err := s.Err(); err != nil {
			follow.Refuse(c.Locate(err))
			return nil, nil
		}
		settings, out.Site, out.Alarms, out.Filter, out.Accept = c, &site, &limits, filter, func() []any { return follow.Accept() }
		return out, nil
	}
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
