// Package auth checks who an SMTP client is (RFC 4954): the exchanges PLAIN, LOGIN and
// SCRAM-SHA-256, against a file of accounts, Dovecot's auth server or PAM.
//
// It owns nothing on disk. A program of PAM's runs as a child, so that a module that
// crashes or hangs is a login that did not work, and nothing else.
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
	"path/filepath"
	"strings"
	"time"

	checker "zmailer/internal/lookup/passwd/pam"
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
	Keeper   config.Keeper // of the file of accounts; may be nil
	Now      func() time.Time
	Log      *slog.Logger
}

// Open opens a backend: file:PATH, dovecot:/path/to/socket or pam:SERVICE.
func Open(source string, o Options) (Backend, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	scheme, rest, _ := strings.Cut(source, ":")
	if err := Check(source); err != nil {
		return nil, &config.Error{File: source, Reason: err.Error()}
	}
	switch scheme {
	case "file":
		if !filepath.IsAbs(rest) {
			rest = filepath.Join(o.Dir, rest)
		}
		return openFile(rest, o)
	case "dovecot":
		return newDovecot(rest, o), nil
	default:
		return newPAM(rest, o)
	}
}

// Probe reports what a source lacks on this machine: the socket of Dovecot, the service or
// the modules of PAM. A server starts without it; its clients get 454 until it is there.
func Probe(source string) error {
	scheme, rest, _ := strings.Cut(source, ":")
	if scheme == "pam" {
		return checker.Installed(rest)
	}
	return nil
}

// Check reports what is wrong with a source.
func Check(source string) error {
	scheme, rest, ok := strings.Cut(source, ":")
	switch {
	case !ok || rest == "" || strings.ContainsAny(rest, " \t"):
		return errors.New("want file:PATH, dovecot:/path/to/socket or pam:SERVICE")
	case scheme == "file":
	case scheme == "dovecot" && !filepath.IsAbs(rest):
		return errors.New("want an absolute path behind \"dovecot:\"")
	case scheme == "dovecot":
	case scheme == "pam" && (strings.Contains(rest, "/") || rest[0] == '-'):
		return errors.New("want the name of a file in /etc/pam.d behind \"pam:\"")
	case scheme == "pam":
	default:
		return fmt.Errorf("%s: is none of file, dovecot and pam", scheme)
	}
	return nil
}
