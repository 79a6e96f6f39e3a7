// Package dnslist asks DNS lists about clients and domains (RFC 5782): block lists, and allow
// lists with a negative weight. The lists are asked in parallel. One that does not answer in
// time counts as if nothing were listed.
//
// It owns nothing on disk; package dnsq caches the answers.
//
// Diagnostics: a list that fails is logged once as dnsbl-trouble, and once as dnsbl-recovered
// when it answers again. ParseSite's error names the entry and what is expected.
package dnslist

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"zmailer/internal/run/config"
	"zmailer/internal/run/logging"
	"zmailer/internal/stage/smtpserver/policy/dnsq"
)

// Lists are the sites of DNSBL_SITES, or one that a rule names. They may be used by many
// goroutines.
type Lists struct {
	dns     *dnsq.Client
	sites   []Site
	timeout time.Duration
	log     *slog.Logger

	mu      sync.Mutex
	trouble map[string]*trouble // by domain
	keeper  config.Keeper       // of alarms; may be nil
}

// New makes Lists.
func New(dns *dnsq.Client, sites []Site, timeout time.Duration, log *slog.Logger) *Lists {
	return &Lists{dns: dns, sites: sites, timeout: timeout, log: log, trouble: map[string]*trouble{}}
}

// trouble is that of one list: in the log with the first failure, an alarm with outageAfter in a
// row.
type trouble struct {
	logging.Trouble
	*config.Outage
}

// outageAfter failures in a row are an alarm: single questions get lost.
const outageAfter = 3

// Alarms has lists that do not answer raise alarms.
func (l *Lists) Alarms(k config.Keeper) *Lists {
	l.keeper = k
	for _, s := range l.sites {
		l.of(s.Domain)
	}
	return l
}

// Listing is one site that has the client or the domain.
type Listing struct {
	Site Site
	Addr netip.Addr
}

// Result is what the lists say about one client or domain.
type Result struct {
	Score    int
	Listings []Listing // in the order of the sites
	Failed   []string  // the domains of lists that did not answer
}

// Worst returns the listing with the greatest weight; nil: there is none above 0.
func (r *Result) Worst() *Listing {
	var worst *Listing
	for i := range r.Listings {
		l := &r.Listings[i]
		if l.Site.Weight > 0 && (worst == nil || l.Site.Weight > worst.Site.Weight) {
			worst = l
		}
	}
	return worst
}

// Client asks the lists about a client's address.
func (l *Lists) Client(ctx context.Context, a netip.Addr) *Result {
	return l.ask(ctx, func(zone string) string { return dnsq.Reverse(a, zone) })
}

// Domain asks the lists about a domain (RFC 5782 section 3).
func (l *Lists) Domain(ctx context.Context, domain string) *Result {
	domain = strings.ToLower(strings.Trim(domain, "."))
	return l.ask(ctx, func(zone string) string { return domain + "." + zone })
}

// Name asks the lists about what name makes of the domain of a list.
func (l *Lists) Name(ctx context.Context, name func(zone string) string) *Result {
	return l.ask(ctx, name)
}

func (l *Lists) ask(ctx context.Context, name func(zone string) string) *Result {
	ctx, cancel := context.WithTimeout(ctx, l.timeout)
	defer cancel()
	var zones []string
	for _, s := range l.sites {
		if !slices.Contains(zones, s.Domain) {
			zones = append(zones, s.Domain)
		}
	}
	answers, errs := make([]*dnsq.Answer, len(zones)), make([]error, len(zones))
	lookup := func(i int) { answers[i], errs[i] = l.dns.Lookup(ctx, name(zones[i]), dnsq.TypeA) }
	var all sync.WaitGroup
	for i := 1; i < len(zones); i++ {
		all.Go(func() { lookup(i) })
	}
	if len(zones) > 0 {
		lookup(0)
	}
	all.Wait()
	r := &Result{}
	for i, zone := range zones {
		l.note(zone, answers[i], errs[i])
		if errs[i] != nil {
			r.Failed = append(r.Failed, zone)
		}
	}
	for _, s := range l.sites {
		a := answers[slices.Index(zones, s.Domain)]
		if a == nil {
			continue
		}
		if i := slices.IndexFunc(a.Addrs, s.Filter.selects); i >= 0 {
			r.Score += s.Weight
			r.Listings = append(r.Listings, Listing{s, a.Addrs[i]})
		}
	}
	return r
}

// of returns the trouble of a list.
func (l *Lists) of(zone string) *trouble {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := l.trouble[zone]
	if t == nil {
		t = &trouble{Outage: config.NewOutage(l.keeper, config.Backend{Name: "dnsbl:" + zone, Failures: outageAfter,
			Remedy: "see dnsbl-trouble in the log; take the list out of DNSBL_SITES or access if it has ended, and reload"})}
		l.trouble[zone] = t
	}
	return t
}

// note logs a list that fails, and one that answers again.
func (l *Lists) note(zone string, a *dnsq.Answer, err error) {
	t := l.of(zone)
	switch {
	case errors.Is(err, context.Canceled):
		// The client has gone.
	case err != nil:
		t.Failed(err)
		t.Begin(l.log, "dnsbl-trouble", "list", zone, "reason", err, "advice", "clients count as not listed there")
	case slices.ContainsFunc(a.Addrs, func(a netip.Addr) bool { return a.Is4() && isErrorCode(a) }):
		err = errors.New("it refuses the questions of this name server: " + a.Addrs[0].String())
		t.Failed(err)
		t.Begin(l.log, "dnsbl-trouble", "list", zone, "reason", err,
			"advice", "use a name server of your own, or see the rules of the list's operator")
	default:
		t.Answers()
		t.End(l.log, "dnsbl-recovered", "list", zone)
	}
}

// Reason returns the text that a list has about a listing, for the reply; "": it has none or
// did not answer in time.
func (l *Lists) Reason(ctx context.Context, name string) string {
	ctx, cancel := context.WithTimeout(ctx, l.timeout)
	defer cancel()
	a, err := l.dns.Lookup(ctx, name, dnsq.TypeTXT)
	if err != nil || len(a.Text) == 0 {
		return ""
	}
	return a.Text[0]
}
