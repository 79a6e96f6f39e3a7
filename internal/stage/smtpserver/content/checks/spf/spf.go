// Package spf decides whether a domain lets a host send its mail (RFC 7208):
//
//	value := spf.Check(ctx, resolver, client, helo, "ann@example.org")
//
// The whole of a record is read before anything of it is evaluated, so that an error anywhere
// is a permerror. It owns nothing.
//
// Diagnostics: there are no errors, only results. TempError is trouble with the DNS, PermError
// a record that is wrong or takes too many look-ups.
package spf

import (
	"context"
	"net"
	"net/netip"
	"strings"
)

// Result is the result of a check (RFC 7208 section 2.6).
type Result string

// The results.
const (
	None      Result = "none"
	Neutral   Result = "neutral"
	Pass      Result = "pass"
	Fail      Result = "fail"
	SoftFail  Result = "softfail"
	TempError Result = "temperror"
	PermError Result = "permerror"
)

// Resolver asks the DNS. Names have no dot at their end. An error is a *net.DNSError with
// IsNotFound if there is no such record; any other one is trouble. *net.Resolver is one, but it
// tries the search list of the machine.
type Resolver interface {
	LookupTXT(ctx context.Context, name string) ([]string, error)
	LookupMX(ctx context.Context, name string) ([]*net.MX, error)
	// LookupNetIP asks for A records if network is ip4, for AAAA if it is ip6.
	LookupNetIP(ctx context.Context, network, name string) ([]netip.Addr, error)
	LookupAddr(ctx context.Context, addr string) ([]string, error)
}

// Limits of RFC 7208 section 4.6.4.
const (
	maxTerms = 10 // that ask the DNS
	maxVoid  = 2  // questions without an answer
	maxHosts = 10 // of an MX or PTR answer
)

// Check returns whether sender's domain lets client send. A sender without a local part is
// that of the postmaster (section 4.3); helo is for macros alone.
func Check(ctx context.Context, r Resolver, client netip.Addr, helo, sender string) Result {
	local, domain := "postmaster", sender
	if at := strings.LastIndexByte(sender, '@'); at >= 0 {
		domain = sender[at+1:]
		if at > 0 {
			local = sender[:at]
		}
	}
	c := &check{ctx: ctx, dns: r, client: client.Unmap().WithZone(""), helo: helo, local: local, from: domain}
	if !isDomain(domain) {
		return None
	}
	return c.host(domain)
}

// check is one check with what it has used of its limits.
type check struct {
	ctx               context.Context
	dns               Resolver
	client            netip.Addr
	helo, local, from string
	terms, void       int
	names             []string // of the client, that lead back to it
	named             bool     // names were looked up
}

// isDomain reports whether a name can have a record (section 4.3).
func isDomain(name string) bool {
	name = strings.TrimSuffix(name, ".")
	if len(name) > 253 || !strings.Contains(name, ".") || strings.HasPrefix(name, "[") {
		return false
	}
	for label := range strings.SplitSeq(name, ".") {
		if label == "" || len(label) > 63 {
			return false
		}
	}
	return true
}

// host is check_host() of section 4 for a domain.
func (c *check) host(domain string) Result {
	text, result := c.record(domain)
	if result != "" {
		return result
	}
	rec, ok := parse(text)
	if !ok {
		return PermError
	}
	for _, t := range rec.terms {
		matches, trouble := c.matches(t, domain)
		switch {
		case trouble != "":
			return trouble
		case matches:
			return t.result
		}
	}
	if rec.redirect == nil || rec.hasAll {
		return Neutral
	}
	return c.redirected(rec.redirect, domain)
}

// record returns the domain's one record (section 4.5), or a result.
func (c *check) record(domain string) (string, Result) {
	texts, err := c.dns.LookupTXT(c.ctx, strings.TrimSuffix(domain, "."))
	switch {
	case missing(err):
		return "", None
	case err != nil:
		return "", TempError
	}
	var found []string
	for _, t := range texts {
		const version = "v=spf1"
		if len(t) >= len(version) && strings.EqualFold(t[:len(version)], version) && (len(t) == len(version) || t[len(version)] == ' ') {
			found = append(found, t[len(version):])
		}
	}
	switch len(found) {
	case 0:
		return "", None
	case 1:
		return found[0], ""
	}
	return "", PermError
}

// term counts one more term that asks the DNS.
func (c *check) term() (trouble Result) {
	if c.terms++; c.terms > maxTerms {
		return PermError
	}
	return ""
}

// redirected evaluates redirect= (section 6.1).
func (c *check) redirected(target spec, domain string) Result {
	if trouble := c.term(); trouble != "" {
		return trouble
	}
	next := c.expand(target, domain)
	if !isDomain(next) {
		return PermError
	}
	if r := c.host(next); r != None {
		return r
	}
	return PermError
}

// matches reports whether a mechanism matches (section 5), or a result that ends the check.
func (c *check) matches(t *term, domain string) (matches bool, trouble Result) {
	switch t.name {
	case "all":
		return true, ""
	case "ip4", "ip6":
		return t.prefix.Contains(c.client), ""
	}
	if trouble := c.term(); trouble != "" {
		return false, trouble
	}
	target := domain
	if t.domain != nil {
		target = c.expand(t.domain, domain)
	}
	switch t.name {
	case "include":
		return c.included(target)
	case "a":
		return c.anyIn(target, t)
	case "mx":
		return c.exchanges(target, t)
	case "ptr":
		for _, name := range c.ownNames() {
			if isBelow(name, target) {
				return true, ""
			}
		}
		return false, ""
	}
	// exists, section 5.7: A records, whatever the client has.
	addrs, trouble := c.addresses("ip4", target)
	return len(addrs) > 0, trouble
}

// included is section 5.2.
func (c *check) included(target string) (bool, Result) {
	if !isDomain(target) {
		return false, PermError
	}
	switch r := c.host(target); r {
	case Pass:
		return true, ""
	case TempError:
		return false, TempError
	case PermError, None:
		return false, PermError
	}
	return false, ""
}

// network returns the kind of addresses that the client has.
func (c *check) network() string {
	if c.client.Is4() {
		return "ip4"
	}
	return "ip6"
}

// addresses looks a name up and counts an answer that is empty.
func (c *check) addresses(network, name string) ([]netip.Addr, Result) {
	if !isDomain(name) {
		return nil, "" // it has none: section 4.8
	}
	addrs, err := c.dns.LookupNetIP(c.ctx, network, strings.TrimSuffix(name, "."))
	if err != nil {
		return nil, c.failed(err)
	}
	return addrs, ""
}

// failed returns what an error of the DNS makes of the check; "": it goes on.
func (c *check) failed(err error) Result {
	if !missing(err) {
		return TempError
	}
	if c.void++; c.void > maxVoid {
		return PermError
	}
	return ""
}

// anyIn reports whether the client is in a network of one of a name's addresses.
func (c *check) anyIn(name string, t *term) (bool, Result) {
	addrs, trouble := c.addresses(c.network(), name)
	for _, a := range addrs {
		a = a.Unmap()
		bits := t.bits4
		if a.Is6() {
			bits = t.bits6
		}
		if p, err := a.Prefix(bits); err == nil && p.Contains(c.client) {
			return true, ""
		}
	}
	return false, trouble
}

// exchanges is section 5.4.
func (c *check) exchanges(name string, t *term) (bool, Result) {
	if !isDomain(name) {
		return false, ""
	}
	list, err := c.dns.LookupMX(c.ctx, strings.TrimSuffix(name, "."))
	if err != nil && len(list) == 0 {
		return false, c.failed(err)
	}
	if len(list) > maxHosts {
		return false, PermError
	}
	for _, mx := range list {
		if matches, trouble := c.anyIn(strings.TrimSuffix(mx.Host, "."), t); matches || trouble != "" {
			return matches, trouble
		}
	}
	return false, ""
}

// ownNames returns the client's names that lead back to it (section 5.5). No trouble with them
// is an error.
func (c *check) ownNames() []string {
	if c.named {
		return c.names
	}
	c.named = true
	list, _ := c.dns.LookupAddr(c.ctx, c.client.String()) // what is wrong among them is left out
	for _, name := range list[:min(len(list), maxHosts)] {
		name = strings.TrimSuffix(name, ".")
		addrs, err := c.dns.LookupNetIP(c.ctx, c.network(), name)
		if err != nil {
			continue
		}
		for _, a := range addrs {
			if a.Unmap() == c.client {
				c.names = append(c.names, name)
				break
			}
		}
	}
	return c.names
}

// isBelow reports whether a name is a domain or below it.
func isBelow(name, domain string) bool {
	name, domain = strings.ToLower(name), strings.ToLower(strings.TrimSuffix(domain, "."))
	return name == domain || strings.HasSuffix(name, "."+domain)
}

// missing reports whether there is no such record, as opposed to trouble.
func missing(err error) bool {
	dns, ok := err.(*net.DNSError)
	return ok && dns.IsNotFound
}
