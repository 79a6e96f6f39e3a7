package tasmtp

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"zmailer/internal/mail/address"
)

// lmtpPort is where an LMTP server is asked if its host names none: what Unix
// systems call lmtp. RFC 2033 §5 knows no default but forbids 25.
const lmtpPort = 24

// protocol is what a channel's name stands for.
type protocol struct {
	lmtp bool
	mx   bool // look for MX records
}

// protocolOf tells a channel's protocol by the start of its name, so that
// "smtp-slow" may have a clause of its own in scheduler.conf.
func protocolOf(channel string) protocol {
	switch {
	case strings.HasPrefix(channel, "lmtp"):
		return protocol{lmtp: true}
	case strings.HasPrefix(channel, "smtpx"):
		return protocol{}
	}
	return protocol{mx: true}
}

// destination is where the mail of a recipient's host goes.
type destination struct {
	protocol
	name string     // lower case A-labels; "" if addr or unix is set
	addr netip.Addr // written as an address
	unix string     // path of a socket
	port int
}

// errRoute is a host that no address can have: whoever wrote the routing table is
// to mend it, and the mail waits.
var errRoute = errors.New("the routing table has a host that cannot be")

// parseDestination reads a recipient's host: "host" with MX on channel smtp;
// "host:port", "[host]", "[address]", "[address]:port" without; "unix:/path" for
// LMTP. An error is that of a domain that cannot exist, or errRoute.
func parseDestination(channel, host string, defaultPort int) (destination, error) {
	d := destination{protocol: protocolOf(channel), port: defaultPort}
	if d.lmtp {
		d.port = lmtpPort
	}
	if path, ok := strings.CutPrefix(host, "unix:"); ok && d.lmtp {
		if !strings.HasPrefix(path, "/") {
			return d, fmt.Errorf("%w: %q: a socket's path begins with /", errRoute, host)
		}
		d.unix, d.mx = path, false
		return d, nil
	}
	name, err := d.parseHost(host)
	if err != nil {
		return d, fmt.Errorf("%w: %q: %w", errRoute, host, err)
	}
	if d.addr.IsValid() {
		return d, nil
	}
	m := address.Mailbox{Local: "x", Domain: name}
	if d.name, err = m.ASCIIDomain(); err != nil {
		return d, err
	}
	return d, nil
}

// parseHost takes brackets and port off a host and gives its name, unless it is an
// address.
func (d *destination) parseHost(host string) (string, error) {
	name, port := host, ""
	if rest, ok := strings.CutPrefix(host, "["); ok {
		var closed bool
		if name, port, closed = strings.Cut(rest, "]"); !closed {
			return "", errors.New("[ without ]")
		}
		if port != "" && port[0] != ':' {
			return "", errors.New("neither port nor end after ]")
		}
		port, d.mx = strings.TrimPrefix(port, ":"), false
		// RFC 5321 §4.1.3 writes IPv6 addresses with a tag.
		if len(name) > 5 && strings.EqualFold(name[:5], "IPv6:") {
			name = name[5:]
		}
	} else if strings.Count(host, ":") == 1 {
		name, port, _ = strings.Cut(host, ":")
		d.mx = false
	}
	if port != "" {
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil || n == 0 {
			return "", fmt.Errorf("no port: %q", port)
		}
		d.port = int(n)
	}
	if a, err := netip.ParseAddr(name); err == nil {
		d.addr, d.mx = a.Unmap(), false
		return "", nil
	}
	name = strings.TrimSuffix(name, ".")
	if name == "" || name[0] == '[' {
		return "", errors.New("no name")
	}
	return name, nil
}

// target is one address that is connected to.
type target struct {
	network string // tcp or unix
	address string // for net.Dial
	name    string // of the host; "" if it was given as an address
}

func (d *destination) target(name string, a netip.Addr) target {
	return target{network: "tcp", address: net.JoinHostPort(a.String(), strconv.Itoa(d.port)), name: name}
}

// remote names a target for reports (RFC 3464 §2.3.5): the name that was looked up,
// or the address, and in parentheses both ends of the connection, as ZMailer has
// them. local is nil if there is no connection.
func (t *target) remote(local net.Addr) string {
	if t.network == "unix" {
		return "x-unix; " + t.address
	}
	host, port, _ := net.SplitHostPort(t.address)
	ends := host + "|" + port
	if local != nil {
		if lhost, lport, err := net.SplitHostPort(local.String()); err == nil {
			ends += "|" + lhost + "|" + lport
		}
	}
	if t.name == "" {
		return "X-IP-addr; [" + host + "] (" + ends + ")"
	}
	return "dns; " + t.name + " (" + ends + ")"
}
