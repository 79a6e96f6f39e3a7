package mx

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"github.com/miekg/dns"

	"zmailer/internal/stage/tasmtp/dane"
)

// Secure reports whether the answers that Hosts gave for a domain were validated by the
// name server (RFC 4035 §3.2.3), and that we may believe it. The error is of a lookup that
// says neither: the answers may have run out since.
func (r *Resolver) Secure(ctx context.Context, domain string) (bool, error) {
	a, err := r.find(ctx, canonical(domain), dns.TypeMX)
	return err == nil && a.secure, err
}

// TLSA is what a server's host has of TLSA records.
type TLSA struct {
	Base    string        // the name above which they are; the server's name for TLS
	Records []dane.Record // none: there are none that are secure
}

// ErrUntrusted is a name server whose AD flag is not trusted.
var ErrUntrusted = errors.New("the name server is not on this machine, and DANETRUST does not say that its word is good")

// Trusted returns an error if no answer can be known to be secure.
func (r *Resolver) Trusted() error {
	servers, err := r.client.Servers()
	if err != nil || r.cfg.Trust {
		return err
	}
	for _, s := range servers {
		if !loopback(s) {
			return fmt.Errorf("%s: %w", s, ErrUntrusted)
		}
	}
	return nil
}

func loopback(server string) bool {
	host, _, err := net.SplitHostPort(server)
	if err != nil {
		return false
	}
	addr, err := netip.ParseAddr(host)
	return err == nil && addr.IsLoopback()
}

// TLSA looks for the TLSA records of a server (RFC 7672 §2.2): only if its addresses are
// secure, at the name that its aliases end at and then at its own. The error is of a
// lookup that must not fail: the server cannot be used now.
func (r *Resolver) TLSA(ctx context.Context, host string, port int) (TLSA, error) {
	host = canonical(host)
	bases, err := r.bases(ctx, host)
	if err != nil {
		return TLSA{}, err
	}
	for _, base := range bases {
		a, err := r.find(ctx, fmt.Sprintf("_%d._tcp.%s", port, base), dns.TypeTLSA)
		if err != nil {
			return TLSA{}, err
		}
		if a.secure && len(a.tlsa) > 0 {
			return TLSA{Base: base, Records: a.tlsa}, nil
		}
	}
	return TLSA{}, nil
}

// bases returns the names above which a server's TLSA records may be; none if its addresses
// are not secure. The addresses of one family decide, IPv4 if there are any.
func (r *Resolver) bases(ctx context.Context, host string) ([]string, error) {
	a, err := r.find(ctx, host, dns.TypeA)
	if err != nil || len(a.addrs) == 0 {
		six, err6 := r.find(ctx, host, dns.TypeAAAA)
		if err6 != nil {
			return nil, err6
		}
		if len(six.addrs) > 0 || err != nil {
			a = six
		}
	}
	switch {
	case a.secure && a.owner != host:
		return []string{a.owner, host}, nil
	case a.secure:
		return []string{host}, nil
	case a.owner == host:
		return nil, nil
	}
	// An alias out of a signed zone into one that is not (RFC 7672 §2.2.3).
	alias, err := r.find(ctx, host, dns.TypeCNAME)
	if err != nil || !alias.secure || !alias.alias {
		return nil, err
	}
	return []string{host}, nil
}

// Text returns a name's TXT records, each as one string. None is no error.
func (r *Resolver) Text(ctx context.Context, name string) ([]string, error) {
	a, err := r.find(ctx, canonical(name), dns.TypeTXT)
	if err != nil {
		return nil, err
	}
	return a.text, nil
}

// take adds a record of the types that this file is about.
func (a *answer) take(rr dns.RR) {
	switch rr := rr.(type) {
	case *dns.TLSA:
		a.tlsa = append(a.tlsa, record(rr))
	case *dns.TXT:
		a.text = append(a.text, strings.Join(rr.Txt, ""))
	case *dns.CNAME:
		a.alias = true
	}
}

func record(rr *dns.TLSA) dane.Record {
	data, err := hex.DecodeString(rr.Certificate)
	if err != nil {
		data = nil // the library has made it of bytes; a record without any is not usable
	}
	return dane.Record{Usage: rr.Usage, Selector: rr.Selector, Matching: rr.MatchingType, Data: data}
}
