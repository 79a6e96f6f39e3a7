// Package mx finds the servers that take mail for a domain (RFC 5321 §5.1): MX
// records by preference, the domain's own address where there are none, and the
// addresses of each server. Answers are kept as long as they say, in a table of
// limited size.
//
// It owns nothing on disk; a restart asks again.
//
// Diagnostics: every error is an *Error; its Kind is whether asking again can
// help: only Unavailable can.
package mx

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/miekg/dns"

	"zmailer/internal/wire/nameserver"
)

// Kind is why a lookup gave nothing.
type Kind uint8

const (
	Unavailable Kind = iota // no name server answered; ask again later
	NoDomain                // the name does not exist
	NoServer                // the name exists and has no address
	NullMX                  // the domain takes no mail (RFC 7505)
)

// Error is a lookup that gave nothing.
type Error struct {
	Kind Kind
	Type string // MX, A, AAAA or "address"
	Name string // asked for, without a final dot
	Err  error  // with Unavailable: the last trouble
}

func (e *Error) Error() string {
	switch e.Kind {
	case NoDomain:
		return fmt.Sprintf("look up %s of %s: no such domain", e.Type, e.Name)
	case NoServer:
		return fmt.Sprintf("look up %s of %s: none", e.Type, e.Name)
	case NullMX:
		return fmt.Sprintf("%s takes no mail (null MX)", e.Name)
	}
	return fmt.Sprintf("look up %s of %s: %v", e.Type, e.Name, e.Err)
}

func (e *Error) Unwrap() error { return e.Err }

// KindOf returns the kind of an error of this package.
func KindOf(err error) Kind {
	if e := (*Error)(nil); errors.As(err, &e) {
		return e.Kind
	}
	return Unavailable
}

// Host is a server for a domain.
type Host struct {
	Name       string // lower case, without a final dot
	Preference uint16 // lower is better
}

// Config is which name servers to ask.
type Config struct {
	Server   string        // host:port of the name server; "": those of ResolvConf
	Conf     string        // a resolv.conf(5); "": /etc/resolv.conf
	Timeout  time.Duration // per question and server; 0: 5 s
	Attempts int           // per server; 0: 2
	Entries  int           // of the table; 0: 10000
	Trust    bool          // name servers elsewhere may call answers secure, too
	Now      func() time.Time
	Shuffle  func(n int, swap func(i, j int))
}

// Resolver asks name servers. Its methods may be used by many goroutines.
type Resolver struct {
	cfg    Config
	client *nameserver.Client
	cache  cache
}

// New makes a resolver. It sends no query yet.
func New(cfg Config) *Resolver {
	cfg.Entries = cmp.Or(cfg.Entries, 10000)
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Shuffle == nil {
		cfg.Shuffle = rand.Shuffle
	}
	client := nameserver.New(nameserver.Config{Server: cfg.Server, Conf: cfg.Conf, Timeout: cfg.Timeout, Attempts: cfg.Attempts, Now: cfg.Now})
	return &Resolver{cfg: cfg, client: client, cache: cache{entries: map[question]*entry{}, max: cfg.Entries}}
}

// Hosts returns the servers for a domain in the order in which they are to be tried:
// by preference, those of equal preference in random order (RFC 5321 §5.1). A
// domain without MX records is its own server.
func (r *Resolver) Hosts(ctx context.Context, domain string) ([]Host, error) {
	domain = canonical(domain)
	a, err := r.lookup(ctx, domain, dns.TypeMX)
	if KindOf(err) == NoServer {
		return []Host{{Name: domain}}, nil
	}
	if err != nil {
		return nil, err
	}
	hosts := make([]Host, 0, len(a.hosts))
	for _, h := range a.hosts {
		if h.Name != "" {
			hosts = append(hosts, h)
		}
	}
	if len(hosts) == 0 {
		return nil, &Error{Kind: NullMX, Type: "MX", Name: domain}
	}
	r.cfg.Shuffle(len(hosts), func(i, j int) { hosts[i], hosts[j] = hosts[j], hosts[i] })
	slices.SortStableFunc(hosts, func(a, b Host) int { return cmp.Compare(a.Preference, b.Preference) })
	return hosts, nil
}

// Addrs returns a server's addresses in random order.
func (r *Resolver) Addrs(ctx context.Context, name string) ([]netip.Addr, error) {
	name = canonical(name)
	type result struct {
		a   *answer
		err error
	}
	six := make(chan result, 1)
	go func() {
		a, err := r.lookup(ctx, name, dns.TypeAAAA)
		six <- result{a, err}
	}()
	a4, err4 := r.lookup(ctx, name, dns.TypeA)
	r6 := <-six
	var addrs []netip.Addr
	if err4 == nil {
		addrs = append(addrs, a4.addrs...)
	}
	if r6.err == nil {
		addrs = append(addrs, r6.a.addrs...)
	}
	if len(addrs) > 0 {
		r.cfg.Shuffle(len(addrs), func(i, j int) { addrs[i], addrs[j] = addrs[j], addrs[i] })
		return addrs, nil
	}
	for _, err := range []error{err4, r6.err} {
		if KindOf(err) == Unavailable {
			return nil, err
		}
	}
	kind := NoServer
	if KindOf(err4) == NoDomain && KindOf(r6.err) == NoDomain {
		kind = NoDomain
	}
	return nil, &Error{Kind: kind, Type: "address", Name: name}
}

// LocalAddrs is Addrs for a name that an administrator has written down: the hosts
// file of this machine counts before the name servers, as for any other program.
func (r *Resolver) LocalAddrs(ctx context.Context, name string) ([]netip.Addr, error) {
	name = canonical(name)
	// Without a name server this resolver answers from the hosts file alone.
	file := net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) {
		return nil, errors.New("hosts file only")
	}}
	if addrs, err := file.LookupNetIP(ctx, "ip", name); err == nil && len(addrs) > 0 {
		for i := range addrs {
			addrs[i] = addrs[i].Unmap()
		}
		return addrs, nil
	}
	// RFC 6761 §6.3: name servers are not asked for it.
	if name == "localhost" || strings.HasSuffix(name, ".localhost") {
		return []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()}, nil
	}
	return r.Addrs(ctx, name)
}

// canonical returns a name in the form that names are compared in.
func canonical(name string) string { return strings.ToLower(strings.TrimSuffix(name, ".")) }
