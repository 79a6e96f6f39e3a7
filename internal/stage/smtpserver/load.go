package smtpserver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"zmailer/internal/mail/contentrules"
	"zmailer/internal/run/config"
	"zmailer/internal/stage/smtpserver/auth"
	"zmailer/internal/stage/smtpserver/listen"
	"zmailer/internal/stage/smtpserver/policy"
	"zmailer/internal/stage/smtpserver/session"
)

// loaded is what the settings name: certificates, users, rules and tables. The start, a reload
// and CheckConfig have it of the same function.
type loaded struct {
	certs *listen.Certificates // nil: no TLS
	users auth.Backend         // nil: no one can authenticate
	rules *policy.Policy
	// content are the rules about header and body.
	content *contentrules.Set
}

// load reads all of it. Its error joins all that cannot be used; what was opened is closed then.
func (c *Config) load() (l loaded, err error) {
	var cerr, uerr, rerr error
	access := c.policy()
	access.Directory = config.NewDirectory(access.Dir)
	l.certs, cerr = c.openTLS()
	l.users, uerr = c.openUsers()
	l.rules, err = policy.Open(access)
	l.content, rerr = contentrules.Open(access.Dir, contentrules.Options{Directory: access.Directory, Keeper: c.Keeper, Log: c.Log})
	if err = errors.Join(cerr, uerr, err, rerr); err != nil {
		l.close()
	}
	return l, err
}

func (l *loaded) close() {
	if l.rules != nil {
		l.rules.Close()
	}
}

// CheckConfig reads everything that a start reads and returns all errors, each with the line
// of zmailer.conf or of the file that is wrong.
func CheckConfig(c *config.Config) error {
	cfg, odd, err := checkStart(c)
	if err != nil {
		return c.Locate(errors.Join(err, cfg.checkUsers(c)))
	}
	return c.Locate(errors.Join(odd, cfg.checkUsers(c), cfg.checkSubmission()))
}

// checkSubmission warns of ports where no client can log in.
func (c *Config) checkSubmission() error {
	warn := func(setting, reason, remedy string) error {
		return &config.Error{File: setting, Warning: true, Reason: reason, Remedy: remedy}
	}
	var errs []error
	for _, role := range []session.Role{session.RoleSubmission, session.RoleSubmissions} {
		if c.listensFor(role) && c.Users.Source == "" {
			errs = append(errs, warn(portSettings[role], "serves no client: all have to authenticate there, and AUTH is not set", "set AUTH (docs/auth.md)"))
		}
	}
	if c.listensFor(session.RoleSubmission) && c.Users.Source != "" && len(c.TLS.Certs) == 0 && !c.Users.Plaintext {
		errs = append(errs, warn("SUBMISSIONLISTEN", "serves clients of this machine only: others may authenticate in TLS alone", "set TLSCERT (docs/certificates.md)"))
	}
	return errors.Join(errs...)
}

// CheckStart returns the errors that keep a server from starting.
func CheckStart(c *config.Config) error {
	_, _, err := checkStart(c)
	return c.Locate(err)
}

// checkStart returns also what is odd, and keeps no server from starting.
func checkStart(c *config.Config) (cfg Config, odd, err error) {
	cfg, err = ConfigFrom(c)
	cfg.Log = slog.New(slog.DiscardHandler)
	l, lerr := cfg.load()
	if lerr == nil {
		made := cfg.Filters.Checks
		odd = policy.Unchecked(l.rules, map[string]bool{"spf": made.SPF, "dkim": made.DKIM, "dmarc": made.DMARC})
		l.close()
	}
	return cfg, odd, errors.Join(err, lerr, cfg.checkAddresses(c))
}

// checkUsers asks the backend for what it needs.
func (c *Config) checkUsers(settings *config.Config) error {
	if c.Users.Source == "" {
		return nil
	}
	if err := auth.Probe(c.Users.Source); err != nil {
		return settings.At("AUTH", err)
	}
	return nil
}

// checkAddresses reports addresses that are not of this machine, and such as are named twice.
// The ports are not tried: the running server has them.
func (c *Config) checkAddresses(settings *config.Config) error {
	var errs []error
	seen := map[string]session.Role{}
	for _, role := range session.Roles() {
		for _, addr := range c.Listen[role] {
			if first, twice := seen[addr]; twice {
				errs = append(errs, settings.At(portSettings[role], fmt.Errorf("%s is also in %s", addr, portSettings[first])))
				continue
			}
			seen[addr] = role
			host, _, err := net.SplitHostPort(addr)
			if err != nil || host == "" {
				continue // a socket, or all addresses
			}
			ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
			l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort(host, "0"))
			cancel()
			if err != nil {
				errs = append(errs, settings.At(portSettings[role], fmt.Errorf("%s is no address of this machine: %w", host, err)))
				continue
			}
			_ = l.Close() // nothing was sent to it
		}
	}
	return errors.Join(errs...)
}
