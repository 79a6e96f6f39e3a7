package conf

import (
	"net/netip"
	"strings"

	"zmailer/internal/run/glob"
)

// literal returns the pattern of a host that is an address, as threads are named: [192.0.2.1],
// [192.0.2.1]:2525 or [IPv6:2001:db8::1]. Its brackets are meant, and begin no class.
func literal(host string) string {
	if !strings.HasPrefix(host, "[") {
		return host
	}
	inner, rest, ok := strings.Cut(host[1:], "]")
	if !ok || rest != "" && rest[0] != ':' {
		return host
	}
	if _, err := netip.ParseAddr(strings.TrimPrefix(inner, "ipv6:")); err != nil {
		return host
	}
	return "\\[" + inner + "\\]" + rest
}

// neverMatches returns why no host can match a pattern; "": one may.
func neverMatches(pattern string) string {
	if strings.ContainsAny(pattern, "[?\\") && !strings.HasPrefix(pattern, "\\[") {
		return "" // it has classes
	}
	_, err := netip.ParsePrefix(pattern)
	switch {
	case err == nil:
		return "a network is no host; hosts are names, or addresses like [192.0.2.1]"
	case strings.Contains(pattern, "@"):
		return "a host has no @; give the domain alone"
	case strings.HasPrefix(pattern, "."):
		return "no host begins with a dot; *" + pattern + " is every host below the domain"
	case strings.HasSuffix(pattern, ".") && !strings.HasSuffix(pattern, "*."):
		return "no host ends with a dot; leave it out"
	case strings.Contains(pattern, ".."):
		return "no host has two dots in a row"
	}
	return ""
}

// warnHosts warns of clauses with patterns that match no host.
func (c *File) warnHosts() (list []error) {
	for i := range c.clauses {
		cl := &c.clauses[i]
		for _, p := range cl.host {
			if why := neverMatches(p); why != "" && glob.Any(cl.channel, "smtp") {
				list = append(list, c.warn(cl.at, "%s matches no host: %s", cl.name, why))
			}
		}
	}
	return list
}
