package tasmtp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"zmailer/internal/mail/address"
	"zmailer/internal/mail/status"
	"zmailer/internal/run/config"
	"zmailer/internal/stage/tasmtp/mx"
)

// refusal is why there is no connection to a destination: the result of all its
// recipients. Of several, that of the greatest weight is reported.
type refusal struct {
	outcome    status.Outcome
	code       status.Code
	weight     weight
	reply      string // one line
	remote     string // "" if no host was reached
	text       string // dialogue
	silent     bool   // the address kept us waiting for its answer
	retryPlain bool   // TLS was not to be had; the same address may be asked without
	crowded    bool   // no address was tried, since others wait for the answers of all
	mine       bool   // only for what the message or its sender wants: others may have the host
}

// weight orders refusals: what may be over later comes before what never changes,
// a server's reply before mere silence.
type weight uint8

const (
	weightPermanent weight = iota
	weightLookup
	weightConnect
	weightOurs // we could not try
	weightServer
)

// worse returns the one of two refusals to report: of the same weight, the later one of an
// address that was tried. If one server refuses this message alone, other messages may
// still use it, whatever the next server replies.
func worse(old, latest *refusal) *refusal {
	chosen, other := latest, old
	if old != nil && (old.weight > latest.weight || old.weight == latest.weight && latest.crowded) {
		chosen, other = old, latest
	}
	if other != nil && other.mine && !chosen.mine {
		both := *chosen // the original may be shared
		both.mine = true
		return &both
	}
	return chosen
}

func never(code status.Code, reply string) *refusal {
	return &refusal{outcome: status.Failed, code: code, weight: weightPermanent, reply: reply}
}

// Codes that package status has no name for.
var (
	neverMail = status.Code{Class: 5, Subject: 3, Detail: 2}  // RFC 3463 §3.4: the system is not accepting network messages
	noMail    = status.Code{Class: 5, Subject: 1, Detail: 10} // RFC 7505 §4.2
	noRoute   = status.Code{Class: 5, Subject: 4, Detail: 4}  // RFC 3463 §3.5: no server can be found
	badSetup  = status.Code{Class: 4, Subject: 3, Detail: 5}  // RFC 3463 §3.4: the system is configured wrongly
	notNow    = status.Code{Class: 4, Subject: 3, Detail: 2}  // the system takes no messages
)

// lookupRefusal returns the result of a lookup that gave nothing.
func lookupRefusal(err error) *refusal {
	switch mx.KindOf(err) {
	case mx.NoDomain:
		return never(status.BadDomain, err.Error())
	case mx.NullMX:
		return never(noMail, err.Error())
	case mx.NoServer:
		return never(noRoute, err.Error())
	}
	return &refusal{code: status.RoutingTrouble, weight: weightLookup, reply: err.Error()}
}

// server is one that takes a destination's mail. Its addresses serve as well as each
// other.
type server struct {
	name  string // lower case; "" if the destination was given as an address or a socket
	addrs []target
}

// servers gives those of a destination in the order in which they are to be tried. One
// is looked up when it is its turn; one that cannot be found is yielded as a refusal,
// and the next follows.
func (r *connector) servers(ctx context.Context, d *destination) iter.Seq2[server, *refusal] {
	return func(yield func(server, *refusal) bool) {
		switch {
		case d.unix != "":
			yield(server{addrs: []target{{network: "unix", address: d.unix}}}, nil)
		case d.addr.IsValid():
			yield(server{addrs: []target{d.target("", d.addr)}}, nil)
		case !d.mx:
			addrs, err := r.resolver.LocalAddrs(ctx, d.name)
			yield(d.server(d.name, addrs, err))
		default:
			r.mxServers(ctx, d, yield)
		}
	}
}

func (r *connector) mxServers(ctx context.Context, d *destination, yield func(server, *refusal) bool) {
	hosts, err := r.resolver.Hosts(ctx, d.name)
	if err != nil {
		yield(server{}, lookupRefusal(err))
		return
	}
	hosts = beforeSelf(hosts, r.hostname)
	if len(hosts) == 0 {
		yield(server{}, never(status.RoutingLoop, "mail for "+d.name+" loops back to "+r.hostname))
		return
	}
	for i, h := range hosts {
		addrs, err := r.resolver.Addrs(ctx, h.Name)
		if j := slices.IndexFunc(addrs, func(a netip.Addr) bool { return r.self.has(a, d.port) }); err == nil && j >= 0 {
			// This host under another name: the servers that are left are no better.
			if i == 0 {
				yield(server{}, never(status.RoutingLoop, fmt.Sprintf("mail for %s loops back to %s: %s has our address %s", d.name, r.hostname, h.Name, addrs[j])))
			}
			return
		}
		if !yield(d.server(h.Name, addrs, err)) {
			return
		}
	}
}

// server is one of a destination's with the addresses that were found for it.
func (d *destination) server(name string, addrs []netip.Addr, err error) (server, *refusal) {
	if err != nil {
		why := lookupRefusal(err)
		if name != d.name && why.weight == weightPermanent {
			why.code = noRoute // the domain is good, its server is not
		}
		return server{name: name}, why
	}
	s := server{name: name, addrs: make([]target, len(addrs))}
	for i, a := range addrs {
		s.addrs[i] = d.target(name, a)
	}
	return s, nil
}

// beforeSelf drops this host and every server that is not better than it: mail that
// it relayed to them would come back (RFC 5321 §5.1).
func beforeSelf(hosts []mx.Host, self string) []mx.Host {
	i := slices.IndexFunc(hosts, func(h mx.Host) bool { return h.Name == self })
	if i < 0 {
		return hosts
	}
	return slices.DeleteFunc(slices.Clone(hosts), func(h mx.Host) bool { return h.Preference >= hosts[i].Preference })
}

// lmtpPort is where an LMTP server is asked if its host names none: what Unix
// systems call lmtp. RFC 2033 §5 knows no default but forbids 25.
const lmtpPort = 24

// protocol is the meaning of a channel's name.
type protocol struct {
	lmtp bool
	mx   bool // look for MX records
}

// protocolOf finds a channel's protocol by the start of its name, so that
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

// errRoute is a host that is invalid: the routing table has to be corrected, and the mail
// waits.
var errRoute = errors.New("the routing table has an invalid host")

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
	next, err := address.ParseNextHop(host)
	if err != nil {
		return d, fmt.Errorf("%w: %q: %w", errRoute, host, err)
	}
	d.addr, d.mx, d.port = next.Addr, d.mx && next.MX, cmp.Or(next.Port, d.port)
	if d.addr.IsValid() {
		return d, nil
	}
	m := address.Mailbox{Local: "x", Domain: next.Name}
	if d.name, err = m.ASCIIDomain(); err != nil {
		return d, err
	}
	return d, nil
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

// ownKept is how long the addresses of this machine's interfaces are remembered.
const ownKept = time.Minute

// selfAddrs knows the addresses that smtpserver of this configuration listens on. Mail that an MX
// record sends there would come back.
type selfAddrs struct {
	listeners  []netip.AddrPort // unspecified address: all of this machine
	now        func() time.Time
	interfaces func() ([]net.Addr, error)

	mu    sync.Mutex
	at    time.Time // when local was read
	local []netip.Addr
}

// ownListeners returns where smtpserver listens by zmailer.conf. smtpserver reports invalid
// addresses.
func ownListeners(c *config.Config) []netip.AddrPort {
	var list []netip.AddrPort
	for _, name := range []string{"SMTPLISTEN", "SUBMISSIONLISTEN", "SUBMISSIONSLISTEN", "REINJECTLISTEN"} {
		texts := c.List(name)
		if name == "SMTPLISTEN" && len(texts) == 0 {
			texts = []string{"127.0.0.1:2525"} // as smtpserver has it
		}
		for _, text := range texts {
			host, port, err := net.SplitHostPort(text)
			if err != nil {
				continue
			}
			n, err := strconv.ParseUint(port, 10, 16)
			if err != nil {
				continue
			}
			var addrs []netip.Addr
			switch addr, err := netip.ParseAddr(host); {
			case err == nil:
				addrs = []netip.Addr{addr.WithZone("").Unmap()}
			case host == "":
				addrs = []netip.Addr{netip.IPv6Unspecified()}
			case host == "localhost":
				addrs = []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()}
			}
			for _, a := range addrs {
				list = append(list, netip.AddrPortFrom(a, uint16(n)))
			}
		}
	}
	return list
}

// has reports whether a connection to an address and port reaches one of our own listeners.
func (o *selfAddrs) has(addr netip.Addr, port int) bool {
	addr = addr.WithZone("").Unmap()
	for _, l := range o.listeners {
		if int(l.Port()) != port {
			continue
		}
		if l.Addr() == addr {
			return true
		}
		// A connection to the unspecified address goes to this machine's loopback.
		if addr.IsUnspecified() && (l.Addr().IsLoopback() || l.Addr().IsUnspecified()) {
			return true
		}
		// A listener on :: takes IPv4 as well.
		if l.Addr().IsUnspecified() && (l.Addr().Is6() || addr.Is4()) && (addr.IsLoopback() || o.isLocal(addr)) {
			return true
		}
	}
	return false
}

// isLocal reports whether an interface of this machine has an address. Where they cannot be
// read none has: the mail is tried, and loops at most until its Received lines are counted.
func (o *selfAddrs) isLocal(addr netip.Addr) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if now := o.now(); o.local == nil || now.Sub(o.at) >= ownKept {
		o.at, o.local = now, []netip.Addr{}
		list, err := o.interfaces()
		if err != nil {
			list = nil
		}
		for _, a := range list {
			if p, err := netip.ParsePrefix(a.String()); err == nil {
				o.local = append(o.local, p.Addr().Unmap())
			}
		}
	}
	return slices.Contains(o.local, addr)
}
