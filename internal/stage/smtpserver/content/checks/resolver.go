package checks

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"

	"github.com/miekg/dns"

	"zmailer/internal/wire/nameserver"
)

// resolver asks for whole names, whatever characters they have: macros of SPF make names of
// addresses. Names are passed and returned as bytes, without escapes and final dot. A name
// without such a record is a *net.DNSError with IsNotFound.
type resolver struct{ client *nameserver.Client }

func newResolver(server string) resolver {
	return resolver{nameserver.New(nameserver.Config{Server: server})}
}

// ask returns a name's records of one type, behind its aliases.
func (r resolver) ask(ctx context.Context, name string, qtype uint16) ([]dns.RR, error) {
	return r.exchange(ctx, dns.Fqdn(strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(strings.TrimSuffix(name, "."))), qtype)
}

func (r resolver) exchange(ctx context.Context, name string, qtype uint16) ([]dns.RR, error) {
	m, err := r.client.Exchange(ctx, name, qtype)
	if err != nil {
		return nil, &net.DNSError{Err: err.Error(), Name: name, IsTemporary: true, UnwrapErr: err}
	}
	// The library escapes a name in an answer in its own way.
	owner := unescaped(name)
	for range m.Answer {
		for _, rr := range m.Answer {
			if c, ok := rr.(*dns.CNAME); ok && strings.EqualFold(unescaped(c.Hdr.Name), owner) {
				owner = unescaped(c.Target)
			}
		}
	}
	var found []dns.RR
	for _, rr := range m.Answer {
		if rr.Header().Rrtype == qtype && strings.EqualFold(unescaped(rr.Header().Name), owner) {
			found = append(found, rr)
		}
	}
	if len(found) == 0 {
		return nil, &net.DNSError{Err: "no such record", Name: name, IsNotFound: true}
	}
	return found, nil
}

// unescaped returns a text of the library as the bytes that it had: \DDD and \X.
func unescaped(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	b := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' || i+1 == len(s) {
			b = append(b, s[i])
			continue
		}
		i++
		if i+2 < len(s) && isDigit(s[i]) && isDigit(s[i+1]) && isDigit(s[i+2]) {
			b = append(b, (s[i]-'0')*100+(s[i+1]-'0')*10+s[i+2]-'0')
			i += 2
		} else {
			b = append(b, s[i])
		}
	}
	return string(b)
}

func isDigit(b byte) bool { return '0' <= b && b <= '9' }

// LookupTXT implements spf.Resolver; DKIM and DMARC use it, too.
func (r resolver) LookupTXT(ctx context.Context, name string) (list []string, err error) {
	found, err := r.ask(ctx, name, dns.TypeTXT)
	for _, rr := range found {
		text := ""
		for _, part := range rr.(*dns.TXT).Txt {
			text += unescaped(part)
		}
		list = append(list, text)
	}
	return list, err
}

// LookupMX implements spf.Resolver.
func (r resolver) LookupMX(ctx context.Context, name string) (list []*net.MX, err error) {
	found, err := r.ask(ctx, name, dns.TypeMX)
	for _, rr := range found {
		mx := rr.(*dns.MX)
		list = append(list, &net.MX{Host: unescaped(mx.Mx), Pref: mx.Preference})
	}
	return list, err
}

// LookupNetIP implements spf.Resolver.
func (r resolver) LookupNetIP(ctx context.Context, network, name string) (list []netip.Addr, err error) {
	qtype := dns.TypeA
	if network == "ip6" {
		qtype = dns.TypeAAAA
	}
	found, err := r.ask(ctx, name, qtype)
	for _, rr := range found {
		var ip net.IP
		switch rr := rr.(type) {
		case *dns.A:
			ip = rr.A
		case *dns.AAAA:
			ip = rr.AAAA
		}
		if a, ok := netip.AddrFromSlice(ip); ok {
			list = append(list, a.Unmap())
		}
	}
	return list, err
}

// LookupAddr implements spf.Resolver.
func (r resolver) LookupAddr(ctx context.Context, addr string) (list []string, err error) {
	name, err := dns.ReverseAddr(addr)
	if err != nil {
		return nil, err
	}
	found, err := r.exchange(ctx, name, dns.TypePTR)
	for _, rr := range found {
		list = append(list, unescaped(rr.(*dns.PTR).Ptr))
	}
	return list, err
}

// missing reports whether a name has no such record, as opposed to trouble.
func missing(err error) bool {
	e := (*net.DNSError)(nil)
	return errors.As(err, &e) && e.IsNotFound
}
