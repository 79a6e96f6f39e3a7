package mx

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/miekg/dns"

	"zmailer/internal/stage/tasmtp/dane"
)

const (
	// maxAliases is how many CNAMEs are followed for one name.
	maxAliases = 8
	// maxTTL and maxNegative bound how long an answer is kept, whatever it contains
	// (RFC 2308 §5).
	maxTTL      = 24 * time.Hour
	maxNegative = time.Hour
	// defaultNegative is for a negative answer that does not say.
	defaultNegative = time.Minute
)

// answer is what one question came to.
type answer struct {
	hosts []Host        // MX; a null MX has no name
	addrs []netip.Addr  // A, AAAA
	tlsa  []dane.Record // TLSA
	text  []string      // TXT
	alias bool          // CNAME
	kind  Kind          // NoDomain or NoServer, if there is nothing

	owner  string // where the aliases end
	secure bool   // all of it was validated by a server that is trusted
}

// some reports whether an answer has records.
func (a *answer) some() bool {
	return len(a.hosts) > 0 || len(a.addrs) > 0 || len(a.tlsa) > 0 || len(a.text) > 0 || a.alias
}

// lookup asks for a name's records of one type, from the table or a server. The
// answer must not be changed.
func (r *Resolver) lookup(ctx context.Context, name string, qtype uint16) (*answer, error) {
	a, err := r.find(ctx, name, qtype)
	if err == nil && !a.some() {
		return nil, &Error{Kind: a.kind, Type: dns.TypeToString[qtype], Name: name}
	}
	return a, err
}

// find is lookup that takes the absence of records for an answer.
func (r *Resolver) find(ctx context.Context, name string, qtype uint16) (*answer, error) {
	q := question{name, qtype}
	a, err := r.cache.get(ctx, q, r.cfg.Now, func() (*answer, time.Duration, error) { return r.ask(ctx, q) })
	if err != nil {
		return nil, &Error{Kind: Unavailable, Type: dns.TypeToString[qtype], Name: name, Err: err}
	}
	return a, nil
}

// ask follows aliases from a name to its records. The time is how long the answer
// may be kept.
func (r *Resolver) ask(ctx context.Context, q question) (*answer, time.Duration, error) {
	name := dns.Fqdn(q.name)
	ttl := maxTTL
	secure := r.Trusted() == nil
	for range maxAliases {
		m, err := r.client.Exchange(ctx, name, q.qtype)
		if err != nil {
			return nil, 0, err
		}
		secure = secure && m.AuthenticatedData
		if m.Rcode == dns.RcodeNameError {
			return &answer{kind: NoDomain, owner: canonical(name), secure: secure}, min(ttl, negativeTTL(m)), nil
		}
		owner := name
		if q.qtype != dns.TypeCNAME {
			if owner, err = follow(m, name, &ttl); err != nil {
				return nil, 0, err
			}
		}
		a := collect(m, owner, q.qtype, &ttl)
		a.owner, a.secure = canonical(owner), secure
		if a.some() {
			return a, ttl, nil
		}
		if strings.EqualFold(owner, name) {
			a.kind = NoServer
			return a, min(ttl, negativeTTL(m)), nil
		}
		name = owner // the server did not follow the alias for us
	}
	return nil, 0, fmt.Errorf("more than %d aliases", maxAliases)
}

// follow returns the name at the end of the aliases in an answer.
func follow(m *dns.Msg, owner string, ttl *time.Duration) (string, error) {
	for range m.Answer {
		next := ""
		for _, rr := range m.Answer {
			if c, ok := rr.(*dns.CNAME); ok && strings.EqualFold(c.Hdr.Name, owner) {
				next = c.Target
				*ttl = min(*ttl, seconds(c.Hdr.Ttl))
			}
		}
		if next == "" {
			return owner, nil
		}
		owner = next
	}
	if alias(m, owner) {
		return "", errors.New("aliases go in a circle")
	}
	return owner, nil
}

// alias reports whether an answer has an alias for a name.
func alias(m *dns.Msg, owner string) bool {
	return slices.ContainsFunc(m.Answer, func(rr dns.RR) bool {
		return rr.Header().Rrtype == dns.TypeCNAME && strings.EqualFold(rr.Header().Name, owner)
	})
}

// collect takes an owner's records of one type from an answer.
func collect(m *dns.Msg, owner string, qtype uint16, ttl *time.Duration) *answer {
	a := &answer{}
	for _, rr := range m.Answer {
		h := rr.Header()
		if h.Rrtype != qtype || !strings.EqualFold(h.Name, owner) {
			continue
		}
		switch rr := rr.(type) {
		case *dns.MX:
			a.hosts = append(a.hosts, Host{Name: canonical(rr.Mx), Preference: rr.Preference})
		case *dns.A:
			if ip, ok := netip.AddrFromSlice(rr.A.To4()); ok {
				a.addrs = append(a.addrs, ip)
			}
		case *dns.AAAA:
			if ip, ok := netip.AddrFromSlice(rr.AAAA.To16()); ok {
				a.addrs = append(a.addrs, ip.Unmap())
			}
		default:
			a.take(rr)
		}
		*ttl = min(*ttl, seconds(h.Ttl))
	}
	return a
}

func seconds(ttl uint32) time.Duration { return time.Duration(ttl) * time.Second }

// negativeTTL is RFC 2308 §5: the lesser of the SOA's own time and its minimum.
func negativeTTL(m *dns.Msg) time.Duration {
	for _, rr := range m.Ns {
		if soa, ok := rr.(*dns.SOA); ok {
			return min(seconds(soa.Hdr.Ttl), seconds(soa.Minttl), maxNegative)
		}
	}
	return defaultNegative
}
