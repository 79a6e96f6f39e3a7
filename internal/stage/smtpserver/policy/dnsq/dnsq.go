// Package dnsq asks name servers for what policy wants to know about clients and domains, and
// caches the answers for their TTL, a bounded number of them.
//
// It owns nothing on disk, and nothing survives a crash.
//
// Diagnostics: an error of Lookup means that nothing is known: no server answered in time, or
// it answered with a failure. That a name or a record does not exist is an Answer.
package dnsq

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/miekg/dns"

	"zmailer/internal/run/memo"
	"zmailer/internal/wire/nameserver"
)

const (
	// maxRecords and maxText bound what is kept of an answer, whatever a server sends.
	maxRecords = 64
	maxText    = 512
	// Bounds of the time for which an answer is cached (RFC 2308 section 5).
	maxTTL      = time.Hour
	defaultTTL  = time.Minute // of a negative answer without SOA
	minTTL      = time.Second // so that simultaneous sessions share an answer with TTL 0
	troubleTTL  = 5 * time.Second
	cacheSize   = 20000
	maxParallel = 500
	maxServers  = 3
)

// Types of questions.
const (
	TypeA    = dns.TypeA
	TypeAAAA = dns.TypeAAAA
	TypeMX   = dns.TypeMX
	TypePTR  = dns.TypePTR
	TypeTXT  = dns.TypeTXT
)

// Answer is the records of a name of one type.
type Answer struct {
	NoDomain bool         // the name does not exist, with any type
	Addrs    []netip.Addr // A, AAAA
	Names    []string     // MX, PTR: in lower case without the final dot; a null MX is ""
	Text     []string     // TXT
}

// Empty reports whether there are no records.
func (a *Answer) Empty() bool { return len(a.Addrs)+len(a.Names)+len(a.Text) == 0 }

// Client asks. It may be used by many goroutines.
type Client struct {
	servers *nameserver.Client
	timeout time.Duration
	now     func() time.Time

	cache  *memo.Memo[result]
	places chan struct{} // bounds the simultaneous questions

	mu      sync.Mutex
	running map[string]*flight
}

type result struct {
	answer *Answer
	err    error
}

// flight is a question that is being asked.
type flight struct {
	done chan struct{}
	result
}

// Config defines whom a Client asks.
type Config struct {
	Server  string        // host:port; "": those of /etc/resolv.conf
	Timeout time.Duration // of one question, all tries together; 0: 10 s
	Conf    string        // "": /etc/resolv.conf
	Now     func() time.Time
}

// New makes a Client; nothing is asked or read yet.
func New(c Config) *Client {
	if c.Now == nil {
		c.Now = time.Now
	}
	c.Timeout = cmp.Or(c.Timeout, 10*time.Second)
	return &Client{
		servers: nameserver.New(nameserver.Config{Server: c.Server, Conf: c.Conf, Total: c.Timeout, Most: maxServers, Now: c.Now}), timeout: c.Timeout, now: c.Now,
		cache: memo.New[result](cacheSize), running: map[string]*flight{}, places: make(chan struct{}, maxParallel),
	}
}

// Lookup returns a name's records of one type. Sessions that ask the same share one question.
// A failure is remembered for some seconds, so that a dead server does not hold up every
// session for the whole timeout.
func (c *Client) Lookup(ctx context.Context, name string, qtype uint16) (*Answer, error) {
	key := dns.TypeToString[qtype] + " " + strings.ToLower(strings.TrimSuffix(name, "."))
	if r, ok := c.cache.Get(key, c.now()); ok {
		return r.answer, r.err
	}
	c.mu.Lock()
	f := c.running[key]
	if f == nil {
		f = &flight{done: make(chan struct{})}
		c.running[key] = f
		go c.fly(f, key, name, qtype)
	}
	c.mu.Unlock()
	select {
	case <-f.done:
		return f.answer, f.err
	case <-ctx.Done():
		return nil, fmt.Errorf("look up %s: %w", key, ctx.Err())
	}
}

// fly asks for all who wait. It does not end with the session that began it.
func (c *Client) fly(f *flight, key, name string, qtype uint16) {
	keep := time.Duration(troubleTTL)
	defer func() {
		// The library parses what any server sends; a panic in it is a failure of this question.
		if r := recover(); r != nil {
			f.result, keep = result{err: fmt.Errorf("look up %s: panic: %v", key, r)}, troubleTTL
		}
		c.cache.Put(key, f.result, c.now(), keep)
		c.mu.Lock()
		delete(c.running, key)
		c.mu.Unlock()
		close(f.done)
	}()
	ctx, cancel := context.WithTimeout(context.Background(), c.timeout)
	defer cancel()
	select {
	case c.places <- struct{}{}:
		defer func() { <-c.places }()
	case <-ctx.Done():
		f.err = fmt.Errorf("look up %s: too many questions at once: %w", key, ctx.Err())
		return
	}
	m, err := c.servers.Exchange(ctx, dns.Fqdn(name), qtype)
	if err != nil {
		f.err = fmt.Errorf("look up %s: %w", key, err)
		return
	}
	f.answer, keep = collect(m, qtype)
}

// collect takes the records of a type, and how long they may be kept. The server has followed
// aliases: the type alone counts.
func collect(m *dns.Msg, qtype uint16) (*Answer, time.Duration) {
	a := &Answer{NoDomain: m.Rcode == dns.RcodeNameError}
	ttl := maxTTL
	for _, rr := range m.Answer {
		h := rr.Header()
		if h.Rrtype == dns.TypeCNAME {
			ttl = min(ttl, time.Duration(h.Ttl)*time.Second)
		}
		if h.Rrtype != qtype || len(a.Addrs)+len(a.Names)+len(a.Text) >= maxRecords {
			continue
		}
		ttl = min(ttl, time.Duration(h.Ttl)*time.Second)
		switch rr := rr.(type) {
		case *dns.A:
			if ip, ok := netip.AddrFromSlice(rr.A.To4()); ok {
				a.Addrs = append(a.Addrs, ip)
			}
		case *dns.AAAA:
			if ip, ok := netip.AddrFromSlice(rr.AAAA.To16()); ok {
				a.Addrs = append(a.Addrs, ip.Unmap())
			}
		case *dns.MX:
			a.Names = append(a.Names, lower(rr.Mx))
		case *dns.PTR:
			a.Names = append(a.Names, lower(rr.Ptr))
		case *dns.TXT:
			text := strings.Join(rr.Txt, "")
			a.Text = append(a.Text, strings.Clone(text[:min(len(text), maxText)]))
		}
	}
	if a.Empty() {
		ttl = min(ttl, negativeTTL(m))
	}
	return a, max(ttl, minTTL)
}

func lower(name string) string { return strings.ToLower(strings.TrimSuffix(name, ".")) }

// negativeTTL is RFC 2308 section 5: the lesser of the SOA's own time and its minimum.
func negativeTTL(m *dns.Msg) time.Duration {
	for _, rr := range m.Ns {
		if soa, ok := rr.(*dns.SOA); ok {
			return min(time.Duration(min(soa.Hdr.Ttl, soa.Minttl))*time.Second, maxTTL)
		}
	}
	return defaultTTL
}

// Reverse returns the name under a zone that has the records of an address: the address
// reversed, as DNS lists and in-addr.arpa have it (RFC 5782 sections 2.1 and 2.4).
func Reverse(a netip.Addr, zone string) string {
	a = a.Unmap().WithZone("")
	var b strings.Builder
	if a.Is4() {
		ip := a.As4()
		fmt.Fprintf(&b, "%d.%d.%d.%d.", ip[3], ip[2], ip[1], ip[0])
	} else {
		const digits = "0123456789abcdef"
		ip := a.As16()
		for i := len(ip) - 1; i >= 0; i-- {
			b.Write([]byte{digits[ip[i]&15], '.', digits[ip[i]>>4], '.'})
		}
	}
	return b.String() + zone
}

// arpa is the zone of an address's names (RFC 1035 section 3.5, RFC 3596 section 2.5).
func arpa(a netip.Addr) string {
	if a.Unmap().Is4() {
		return "in-addr.arpa"
	}
	return "ip6.arpa"
}

// ClientName returns the names of an address: the one that its PTR record has, and the same if
// it leads back to the address, else "". An error means that the DNS did not answer.
func (c *Client) ClientName(ctx context.Context, a netip.Addr) (reverse, verified string, err error) {
	ptr, err := c.Lookup(ctx, Reverse(a, arpa(a)), TypePTR)
	if err != nil || len(ptr.Names) == 0 {
		return "", "", err
	}
	reverse = ptr.Names[0]
	a = a.Unmap().WithZone("")
	qtype := TypeAAAA
	if a.Is4() {
		qtype = TypeA
	}
	forward, err := c.Lookup(ctx, reverse, qtype)
	if err != nil {
		return reverse, "", err
	}
	for _, addr := range forward.Addrs {
		if addr == a {
			return reverse, reverse, nil
		}
	}
	return reverse, "", nil
}

// Mail describes a domain as one that mail is sent to.
type Mail uint8

const (
	HasMail  Mail = iota // it has an MX, A or AAAA record
	NoRecord             // it has none of them, or does not exist
	NullMX               // it takes no mail (RFC 7505)
)

// MailDomain looks up whether mail may be sent to a domain.
func (c *Client) MailDomain(ctx context.Context, domain string) (Mail, error) {
	mx, err := c.Lookup(ctx, domain, TypeMX)
	switch {
	case err != nil:
		return NoRecord, err
	case mx.NoDomain:
		return NoRecord, nil
	case len(mx.Names) == 1 && mx.Names[0] == "":
		return NullMX, nil
	case len(mx.Names) > 0:
		return HasMail, nil
	}
	return c.host(ctx, domain)
}

// host looks up whether a name has an address.
func (c *Client) host(ctx context.Context, name string) (Mail, error) {
	for _, qtype := range []uint16{TypeA, TypeAAAA} {
		a, err := c.Lookup(ctx, name, qtype)
		if err != nil {
			return NoRecord, err
		}
		if len(a.Addrs) > 0 {
			return HasMail, nil
		}
	}
	return NoRecord, nil
}
