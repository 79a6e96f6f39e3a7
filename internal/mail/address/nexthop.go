package address

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// NextHop is a host that mail is sent to: NAME, NAME:PORT, [NAME] or [NAME]:PORT, where the name may be
// an IP address.
type NextHop struct {
	Name string     // as it is written; "" if Addr is valid
	Addr netip.Addr // of a host that is written as an address
	Port int        // 0: not given
	MX   bool       // the name's MX records say where: it has no brackets and no port
}

// ParseNextHop parts a next hop. The name may still be none.
func ParseNextHop(host string) (n NextHop, err error) {
	name, port := host, ""
	n.MX = true
	if rest, ok := strings.CutPrefix(host, "["); ok {
		var closed bool
		if name, port, closed = strings.Cut(rest, "]"); !closed {
			return n, errors.New("[ without ]")
		}
		if port != "" && port[0] != ':' {
			return n, errors.New("neither port nor end after ]")
		}
		port, n.MX = strings.TrimPrefix(port, ":"), false
		// RFC 5321 §4.1.3 writes IPv6 addresses with a tag.
		if len(name) > 5 && strings.EqualFold(name[:5], "IPv6:") {
			name = name[5:]
		}
	} else if strings.Count(host, ":") == 1 {
		name, port, _ = strings.Cut(host, ":")
		n.MX = false
	}
	if port != "" {
		number, err := strconv.ParseUint(port, 10, 16)
		if err != nil || number == 0 {
			return n, fmt.Errorf("no port: %q", port)
		}
		n.Port = int(number)
	}
	if a, err := netip.ParseAddr(name); err == nil {
		n.Addr, n.MX = a.Unmap(), false
		return n, nil
	}
	n.Name = strings.TrimSuffix(name, ".")
	if n.Name == "" || n.Name[0] == '[' {
		return n, errors.New("no name")
	}
	return n, nil
}

// CheckNextHop reports what is wrong with a next hop of SMTP or LMTP, also unix:PATH.
func CheckNextHop(host string) error {
	path, socket := strings.CutPrefix(host, "unix:")
	if socket {
		if !strings.HasPrefix(path, "/") || strings.ContainsFunc(path, func(r rune) bool { return r <= ' ' || r == 0x7f }) {
			return fmt.Errorf("%.80q is no socket: want unix:/PATH without blanks", host)
		}
		return nil
	}
	n, err := ParseNextHop(host)
	if err == nil && n.Name != "" {
		_, err = asciiDomain(n.Name)
	}
	if err != nil {
		return fmt.Errorf("%.80q is no next hop like [192.0.2.1]:25 or relay.example.net: %w", host, err)
	}
	return nil
}
