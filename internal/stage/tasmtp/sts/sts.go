// Package sts is MTA-STS (RFC 8461): what a domain publishes over HTTPS about TLS at its
// servers, believed for as long as it said.
//
// It owns the directory sts of the postoffice: a file for each domain with a policy, under
// the domain's name, for cat and for all agents. A file is whole or absent, and its loss
// means that the policy is fetched again. A restart forgets which fetches have failed.
//
// Diagnostics: Policy never fails as a whole. *Error is why a policy could not be fetched; a
// valid one that was fetched before counts all the same.
package sts

import (
	"cmp"
	"context"
	"crypto/x509"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"zmailer/internal/disk/durable"
)

// Mode is what happens with a server that does not meet the policy.
type Mode string

// Modes (RFC 8461 §5).
const (
	Enforce Mode = "enforce"
	Testing Mode = "testing"
	None    Mode = "none"
)

// Policy is a domain's.
type Policy struct {
	Domain  string
	ID      string // of the TXT record
	Mode    Mode
	MX      []string // names, or *.name for one label more
	MaxAge  time.Duration
	Fetched time.Time
	Lines   []string // as it was fetched
}

// valid reports whether a policy still counts.
func (p *Policy) valid(now time.Time) bool { return p != nil && now.Before(p.Until()) }

// Until returns the end of a policy's time.
func (p *Policy) Until() time.Time { return p.Fetched.Add(p.MaxAge) }

// Has reports whether a server is one of the policy's (RFC 8461 §4.1).
func (p *Policy) Has(host string) bool {
	return slices.ContainsFunc(p.MX, func(mx string) bool {
		below, wild := strings.CutPrefix(mx, "*.")
		if !wild {
			return mx == host
		}
		label, rest, ok := strings.Cut(host, ".")
		return ok && label != "" && rest == below
	})
}

// Result types of RFC 8460 §4.3.2.2.
const (
	FetchError   = "sts-policy-fetch-error"
	Invalid      = "sts-policy-invalid"
	WebPKIFailed = "sts-webpki-invalid"
)

// Error is why the policy of a domain could not be fetched.
type Error struct {
	Domain string
	Type   string // FetchError, Invalid or WebPKIFailed; "": not known whether it has one (§3.1)
	Err    error
}

func (e *Error) Error() string {
	return fmt.Sprintf("fetch the MTA-STS policy of %s: %v", e.Domain, e.Err)
}

func (e *Error) Unwrap() error { return e.Err }

// Config is what a Store needs.
type Config struct {
	FS    durable.FS // the postoffice's; nil: policies live as long as the process
	Look  bool       // FS is only read
	Text  func(ctx context.Context, name string) ([]string, error)
	Addrs func(ctx context.Context, name string) ([]netip.Addr, error)
	Roots *x509.CertPool // of HTTPS servers; nil: the system's
	Port  int            // of HTTPS servers; 0: 443
	Now   func() time.Time
	Log   *slog.Logger
}

const (
	// failedFor is how long a domain whose policy could not be had is left alone (RFC
	// 8461 §3.3).
	failedFor = 5 * time.Minute
	// maxKnown is how many domains are remembered in memory; those with a policy that counts are
	// kept up to maxPolicies. maxTries is how many are looked at to find one to forget.
	maxKnown    = 10000
	maxPolicies = 10 * maxKnown
	maxTries    = 100
	// refreshAfter is how old a policy may be before it is fetched again, however long
	// it counts; half its time is the other bound (§10.2).
	refreshAfter = 24 * time.Hour
)

// Store has the policies. Its methods may be used by many goroutines.
type Store struct {
	cfg Config

	mu    sync.Mutex
	known map[string]*domain
}

// domain is what is known of one; its mutex is held while it is asked for.
type domain struct {
	mu      sync.Mutex
	policy  *Policy // nil: none is known
	looked  bool    // on the disk
	failed  *Error  // of the last fetch
	retry   time.Time
	failing string // the id that could not be had
}

// hasPolicy reports whether a domain's policy counts, or is being asked for: then it is not
// forgotten, because its file may be gone (an attacker can keep it from being fetched again).
func (d *domain) hasPolicy(now time.Time) bool {
	if !d.mu.TryLock() {
		return true
	}
	defer d.mu.Unlock()
	return d.policy.valid(now)
}

// New makes a store. It reads nothing yet.
func New(cfg Config) *Store {
	cfg.Port = cmp.Or(cfg.Port, 443)
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &Store{cfg: cfg, known: map[string]*domain{}}
}

func (s *Store) domain(name string) *domain {
	s.mu.Lock()
	defer s.mu.Unlock()
	d := s.known[name]
	if d == nil {
		tries := 0
		for old, is := range s.known {
			if tries++; len(s.known) < maxKnown || tries > maxTries {
				break
			}
			if !is.hasPolicy(s.cfg.Now()) || len(s.known) >= maxPolicies {
				delete(s.known, old)
			}
		}
		d = &domain{}
		s.known[name] = d
	}
	return d
}

// Policy returns a domain's policy, nil if it has none. Both results may be set: the policy
// was fetched before and counts still, and now it cannot be had, or not be asked for. While a valid one is
// known, nothing that the network says makes it less (§5.1).
func (s *Store) Policy(ctx context.Context, name string) (*Policy, *Error) {
	d := s.domain(name)
	d.mu.Lock()
	defer d.mu.Unlock()
	now := s.cfg.Now()
	if !d.looked || !d.policy.valid(now) {
		d.policy, d.looked = s.load(name), true
	}
	if !d.policy.valid(now) {
		d.policy = nil
	}
	texts, err := s.cfg.Text(ctx, "_mta-sts."+name)
	if err != nil {
		// It is unknown whether there is a policy: most mail is sent as if there were none.
		return d.policy, &Error{Domain: name, Err: err}
	}
	id, ok := recordID(texts)
	if !ok {
		return d.policy, nil
	}
	if d.policy != nil && d.policy.ID == id && now.Sub(d.policy.Fetched) < min(refreshAfter, d.policy.MaxAge/2) {
		return d.policy, nil
	}
	if d.failed != nil && d.failing == id && now.Before(d.retry) {
		return d.policy, d.failed
	}
	fresh, failed := s.fetch(ctx, name)
	if failed != nil {
		d.failed, d.failing, d.retry = failed, id, now.Add(failedFor)
		s.cfg.Log.Warn("sts-fetch-failed", "domain", name, "result", failed.Type, "reason", failed.Err)
		return d.policy, failed
	}
	fresh.ID, fresh.Fetched = id, now
	d.policy, d.failed = fresh, nil
	s.keep(fresh)
	return fresh, nil
}

// recordID takes the id out of the one record that there must be (§3.1).
func recordID(texts []string) (string, bool) {
	var record string
	for _, t := range texts {
		if !strings.HasPrefix(t, "v=STSv1") || len(t) > 7 && !strings.ContainsRune("; \t", rune(t[7])) {
			continue
		}
		if record != "" {
			return "", false
		}
		record = t
	}
	for field := range strings.SplitSeq(record, ";") {
		key, value, ok := strings.Cut(strings.TrimSpace(field), "=")
		if ok && strings.TrimSpace(key) == "id" {
			return value, isID(value)
		}
	}
	return "", false
}

func isID(id string) bool {
	return len(id) >= 1 && len(id) <= 32 && !strings.ContainsFunc(id, func(r rune) bool {
		return (r < '0' || r > '9') && (r|0x20 < 'a' || r|0x20 > 'z')
	})
}
