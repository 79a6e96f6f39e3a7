package text

import (
	"errors"
	"fmt"
	"strings"

	"zmailer/internal/mail/address"
)

// Key brings a key as an operator writes it into the form that is compared.
func Key(kind Kind, s string) (string, error) {
	switch kind {
	case Aliases:
		return AliasKey(s)
	case FQDNAliases:
		return FQDNKey(s)
	case Routes:
		return RouteKey(s)
	case LocalNames:
		return Domain(s)
	case Masquerade:
		return MasqueradeKey(s)
	case VirtualAliasDomains, VirtualMailboxDomains:
		return Domain(s)
	case RelayDomains:
		return relayKey(s)
	case VirtualMailboxMaps, VirtualUIDMaps, VirtualGIDMaps, RelayRecipientMaps:
		return addressKey(s)
	}
	return "", fmt.Errorf("%q is no kind of table", kind)
}

// AliasKey reads the name of a local alias, or an address or "@dom" of a virtual domain.
func AliasKey(s string) (string, error) {
	name, quoted := Unquoted(s)
	switch {
	case name == "":
		return "", errors.New("no name before the colon")
	case quoted:
		return AliasName(name), nil
	case strings.ContainsRune(name, '@'):
		return addressKey(name)
	case strings.ContainsAny(name, " \t\""):
		return "", fmt.Errorf("blank or quote in the name %q; write it in quotes", name)
	}
	return strings.ToLower(name), nil
}

// AliasName is the key of a local part that is an alias in local domains. One that has an @
// itself stays in quotes, so that it is never taken for an address.
func AliasName(local string) string {
	if strings.ContainsRune(local, '@') {
		local = `"` + local + `"`
	}
	return strings.ToLower(local)
}

// FQDNKey reads "user@dom" or "@dom".
func FQDNKey(s string) (string, error) {
	key, err := addressKey(s)
	if errors.Is(err, errNoDomain) {
		err = fmt.Errorf("%w: it belongs in aliases", err)
	}
	return key, err
}

var errNoDomain = errors.New("has no domain")

// addressKey reads "user@dom" or "@dom".
func addressKey(s string) (string, error) {
	if domain, all := strings.CutPrefix(s, "@"); all {
		d, err := Domain(domain)
		return "@" + d, err
	}
	m, err := address.Parse(s)
	if err == nil && m.Domain == "" {
		err = fmt.Errorf("%q %w", s, errNoDomain)
	}
	if err != nil {
		return "", err
	}
	d, err := m.ASCIIDomain()
	return strings.ToLower(m.Local) + "@" + d, err
}

// Keys of routes that are no domain.
const (
	DefaultRoute = "."       // all that has no other
	ReportRoute  = ".:error" // the same for reports
)

// RouteKey reads a domain, ".dom" for it and all below, "." or ".:ERROR".
func RouteKey(s string) (string, error) {
	switch lower := strings.ToLower(s); lower {
	case DefaultRoute, ReportRoute:
		return lower, nil
	}
	if domain, below := strings.CutPrefix(s, "."); below {
		d, err := Domain(domain)
		return "." + d, err
	}
	return Domain(s)
}

// relayKey reads a relay domain, or ".dom" for it and all below.
func relayKey(s string) (string, error) {
	if domain, below := strings.CutPrefix(s, "."); below {
		d, err := Domain(domain)
		return "." + d, err
	}
	return Domain(s)
}

// Domain returns a domain in the form that is compared.
func Domain(s string) (string, error) {
	d, err := address.Mailbox{Local: "x", Domain: strings.TrimSuffix(s, ".")}.ASCIIDomain()
	if err == nil && d == "" {
		err = errors.New("domain is empty")
	}
	return d, err
}

// Route is what a key of the table routes leads to.
type Route struct {
	Channel string
	Host    string // "": the recipient's domain
}

// ParseRoute reads "channel!host" or "channel!".
func ParseRoute(s string) (Route, error) {
	channel, host, ok := strings.Cut(s, "!")
	if !ok {
		return Route{}, fmt.Errorf("no ! in %q: want channel!host, like %s", s, likeRoute(s))
	}
	if !isChannel(channel) {
		return Route{}, fmt.Errorf("%q is no channel: want lower-case letters, digits and hyphens", channel)
	}
	if channel == "local" && host != "" {
		return Route{}, fmt.Errorf("channel local takes no host: %q", host)
	}
	for i := 0; i < len(host); i++ {
		if host[i] <= ' ' || host[i] == 0x7f {
			return Route{}, fmt.Errorf("blank or control character in the host %q", host)
		}
	}
	if rest, literal := strings.CutPrefix(host, "["); literal && (strings.HasPrefix(channel, "smtp") || channel == "lmtp") {
		if _, port, closed := strings.Cut(rest, "]"); !closed || port != "" && port[0] != ':' {
			return Route{}, fmt.Errorf("%q is no host in brackets: want %s![name], or with a port %s![name]:25", host, channel, channel)
		}
	}
	return Route{channel, host}, nil
}

// likeRoute writes a next hop of Postfix's transport_maps or relayhost as a route.
func likeRoute(s string) string {
	channel, host, ok := strings.Cut(s, ":")
	switch {
	case ok && isChannel(channel) && host != "" && (host[0] == '[' || host[0] > '9'):
		return channel + "!" + host
	case strings.HasPrefix(s, "["):
		return "smtp!" + s
	}
	return "smtp!relay.example.net or smtp![192.0.2.1]:25"
}

func isChannel(s string) bool {
	for i := 0; i < len(s); i++ {
		b := s[i]
		if !('a' <= b && b <= 'z' || i > 0 && ('0' <= b && b <= '9' || b == '-')) {
			return false
		}
	}
	return s != ""
}
