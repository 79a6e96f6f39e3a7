// Package auth checks who an SMTP client is (RFC 4954): by passwords and SCRAM-SHA-256 against a
// file of accounts, by what Dovecot's auth server has, by passwords against PAM, an LDAP directory
// or saslauthd, and by OAuth 2.0 tokens.
//
// It owns nothing on disk. PAM, directories and authorization servers are asked by a child, so
// that what crashes or hangs is a login that did not work, and nothing else.
//
// Diagnostics: Open's errors are *config.Error. Next returns ErrRefused for a wrong password
// or an unknown user, and ErrSyntax for a malformed response; any other error is trouble of
// ours, and the client has to try again.
package auth

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	checker "zmailer/internal/lookup/passwd/pam"
	"zmailer/internal/lookup/settings"
	"zmailer/internal/run/config"
)

var (
	// ErrRefused means that user and password do not match, without naming the wrong one.
	ErrRefused = errors.New("auth: refused")
	// ErrSyntax means that a response is none of the mechanism's.
	ErrSyntax = errors.New("auth: no response of this mechanism")
	// ErrMechanism means that there is no such mechanism here.
	ErrMechanism = errors.New("auth: unknown mechanism")
)

// Names of mechanisms.
const (
	Plain       = "PLAIN"         // RFC 4616
	Login       = "LOGIN"         // for clients without PLAIN
	ScramSHA256 = "SCRAM-SHA-256" // RFC 7677
)

// Peer is the client that authenticates.
type Peer struct {
	Remote netip.AddrPort // the zero value: a Unix socket
	Local  netip.AddrPort
	TLS    bool
}

// Backend checks users. It may be used by many goroutines.
type Backend interface {
	// Mechanisms returns those that it supports, the best one first.
	Mechanisms(ctx context.Context) []string
	// Start begins an exchange; the error is ErrMechanism, or trouble.
	Start(ctx context.Context, mechanism string, p Peer) (Exchange, error)
}

// Exchange is one client's attempt.
type Exchange interface {
	// Next takes the client's response, nil if it sent none with its command, and gives
	// the next challenge. done: the client is User.
	Next(ctx context.Context, response []byte) (challenge []byte, done bool, err error)
	// User returns the user that the client has authenticated as.
	User() string
	// Claimed returns the user that the client named; "" before it has. For the log.
	Claimed() string
	// Close ends an exchange, finished or not.
	Close()
}

// Options say how backends are opened.
type Options struct {
	Dir      string        // where a path without / begins: beside zmailer.conf
	Programs string        // where the program lookup is; "": beside this program
	Keeper   config.Keeper // of the file of accounts, and of the alarms about the others; may be nil
	Now      func() time.Time
	Log      *slog.Logger
}

// Open opens the backends of a list of sources: file:PATH, dovecot:/path/to/socket, pam:SERVICE,
// ldap:FILE, saslauthd:/path/to/socket, oauth2:FILE.
func Open(source string, o Options) (Backend, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	var all several
	var errs []error
	for _, one := range strings.Fields(source) {
		b, err := open(one, o)
		all, errs = append(all, b), append(errs, err)
	}
	switch err := errors.Join(errs...); {
	case err != nil:
		return nil, err
	case len(all) == 0:
		return nil, &config.Error{File: "AUTH", Reason: "names no source"}
	case len(all) == 1:
		return all[0], nil
	}
	return all, nil
}

func open(source string, o Options) (Backend, error) {
	scheme, rest, _ := strings.Cut(source, ":")
	if err := check(source); err != nil {
		return nil, &config.Error{File: source, Reason: err.Error()}
	}
	beside := rest
	if !filepath.IsAbs(rest) {
		beside = filepath.Join(o.Dir, rest)
	}
	if scheme == "file" {
		return openFile(beside, o) // its Keeper has the alarm
	}
	away := o.outage(source)
	switch scheme {
	case "dovecot":
		return newDovecot(rest, o, away), nil
	case "saslauthd":
		return &saslauthd{rest, away}, nil
	case "ldap":
		if _, err := settings.ReadLDAPBind(o.secret, beside); err != nil {
			return nil, err
		}
		return newDirectory(beside, o, away)
	case "oauth2":
		if _, err := settings.ReadOAuth2(o.secret, beside); err != nil {
			return nil, err
		}
		return newTokens(beside, o, away)
	default:
		return newPAM(rest, o, away)
	}
}

// secret opens a file of passwords.
func (o *Options) secret(path string) (*os.File, error) { return config.OpenSecret(o.Keeper, path) }

// attach returns what gives a child the right to read a file that this process may not read; nil:
// it needs none.
func (o *Options) attach(path string) func(*exec.Cmd) (func(), error) {
	if o.Keeper == nil {
		return nil
	}
	return func(cmd *exec.Cmd) (func(), error) { return o.Keeper.Attach(cmd, path) }
}

// outage raises the alarm of a source.
func (o *Options) outage(source string) *config.Outage {
	return config.NewOutage(o.Keeper, config.Backend{Name: "auth:" + source,
		Remedy: "see auth-trouble in the log and start what AUTH names; clients get 454 and try again"})
}

// answered notes whether a source has decided about a user.
func answered(away *config.Outage, err error) error {
	if errors.Is(err, ErrRefused) {
		away.Answers()
	} else {
		away.Note(err)
	}
	return err
}

// Probe reports what the sources lack on this machine: the service of PAM. A server starts
// without it; its clients get 454 until it is there.
func Probe(source string) error {
	var errs []error
	for _, one := range strings.Fields(source) {
		if scheme, rest, _ := strings.Cut(one, ":"); scheme == "pam" {
			errs = append(errs, checker.Installed(rest))
		}
	}
	return errors.Join(errs...)
}

// Check reports what is wrong with a list of sources.
func Check(source string) error {
	var errs []error
	for _, one := range strings.Fields(source) {
		errs = append(errs, check(one))
	}
	return errors.Join(errs...)
}

func check(source string) error {
	scheme, rest, ok := strings.Cut(source, ":")
	switch {
	case !ok || rest == "" || strings.ContainsAny(rest, " \t"):
		return errors.New("want file:PATH, dovecot:/path/to/socket, pam:SERVICE, ldap:FILE, saslauthd:/path/to/socket or oauth2:FILE")
	case scheme == "file" || scheme == "ldap" || scheme == "oauth2":
	case (scheme == "dovecot" || scheme == "saslauthd") && !filepath.IsAbs(rest):
		return fmt.Errorf("want an absolute path behind %q", scheme+":")
	case scheme == "dovecot" || scheme == "saslauthd":
	case scheme == "pam" && (strings.Contains(rest, "/") || rest[0] == '-'):
		return errors.New("want the name of a file in /etc/pam.d behind \"pam:\"")
	case scheme == "pam":
	default:
		return fmt.Errorf("%s: is none of file, dovecot, pam, ldap, saslauthd and oauth2", scheme)
	}
	return nil
}
