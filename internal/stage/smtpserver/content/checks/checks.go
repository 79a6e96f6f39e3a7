// Package checks finds the domains that vouch for a message: SPF (RFC 7208) for the host that
// sent it, DKIM (RFC 6376, 8301, 8463) for its content, DMARC (RFC 7489) for whether
// either of them speaks for the author's domain. The results go into one
// Authentication-Results field (RFC 8601) and to the access rules; by itself no result
// refuses anything.
//
// It owns nothing on disk.
//
// Diagnostics: the error of DKIM is that of the content's reader. Everything else is a
// result: trouble with the DNS is temperror, what a domain has published wrongly is
// permerror.
package checks

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// Value is a result's one word, as RFC 8601 §2.7 has them.
type Value string

const (
	None      Value = "none"
	Pass      Value = "pass"
	Fail      Value = "fail"
	SoftFail  Value = "softfail"
	Neutral   Value = "neutral"
	Policy    Value = "policy"
	TempError Value = "temperror"
	PermError Value = "permerror"
)

// Names returns the checks that a setting may name.
func Names() []string { return []string{"spf", "dkim", "dmarc"} }

// ParseNames reads a setting's list.
func ParseNames(list []string) (spf, dkim, dmarc bool, err error) {
	for _, name := range list {
		switch name {
		case "spf":
			spf = true
		case "dkim":
			dkim = true
		case "dmarc":
			dmarc = true
		default:
			return false, false, false, fmt.Errorf("unknown check %s; there are %s", name, strings.Join(Names(), ", "))
		}
	}
	if dmarc && !spf && !dkim {
		return false, false, false, errors.New("dmarc needs spf or dkim")
	}
	return spf, dkim, dmarc, nil
}

// Config defines which checks are made and with which name server.
type Config struct {
	SPF, DKIM, DMARC bool

	Host    string        // our name, the authserv-id (RFC 8601 section 2.5)
	Server  string        // host:port of the name server; "": those of /etc/resolv.conf
	Timeout time.Duration // of all queries of a check; 0: 20 s (RFC 7208 §4.6.4)
	Percent func() int    // 0 to 99, for pct= of DMARC; nil: by chance
}

// Checker does checks. Its methods may be used by many goroutines.
type Checker struct {
	cfg Config
	dns resolver
}

// defaultTimeout is how long RFC 7208 §4.6.4 lets SPF take at least.
const defaultTimeout = 20 * time.Second

// New makes a Checker; nil if nothing is to be checked.
func New(cfg Config) *Checker {
	if !cfg.SPF && !cfg.DKIM && !cfg.DMARC {
		return nil
	}
	cfg.Timeout = cmp.Or(cfg.Timeout, defaultTimeout)
	if cfg.Percent == nil {
		cfg.Percent = func() int { return rand.IntN(100) }
	}
	return &Checker{cfg: cfg, dns: newResolver(cfg.Server)}
}

// Limit returns a context for the queries of one check.
func (c *Checker) Limit(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, c.cfg.Timeout)
}

// Results are the results for one message.
type Results struct {
	SPF   SPF
	DKIM  []Signature // none: there is no signature, or DKIM was not checked
	DMARC DMARC
}

// DKIMValue is one word for all signatures: the best of them.
func (r *Results) DKIMValue() Value {
	best := None
	rank := []Value{None, PermError, Neutral, Policy, Fail, TempError, Pass}
	for _, s := range r.DKIM {
		if slices.Index(rank, s.Value) > slices.Index(rank, best) {
			best = s.Value
		}
	}
	return best
}
