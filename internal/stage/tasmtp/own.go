package tasmtp

import (
	"net"
	"net/netip"
	"strconv"
	"sync"
	"time"

	"zmailer/internal/run/config"
)

// ownKept is how long the addresses of this machine's interfaces are remembered.
const ownKept = time.Minute

// own knows the addresses that smtpserver of this configuration listens on. Mail that an MX
// record sends there would come back.
type own struct {
	listeners  []netip.AddrPort // unspecified address: all of this machine
	now        func() time.Time
	interfaces func() ([]net.Addr, error)

	mu    sync.Mutex
	at    time.Time // when local was read
	local []netip.Addr
}

// ownListeners returns where smtpserver listens by zmailer.conf. What is no address there is
// smtpserver's to complain about.
func ownListeners(c *config.Config) []netip.AddrPort {
	var list []netip.AddrPort
	for _, name := range []string{"SMTPLISTEN", "SUBMISSIONLISTEN", "SUBMISSIONSLISTEN"} {
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
func (o *own) has(addr netip.Addr, port int) bool {
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
func (o *own) isLocal(addr netip.Addr) bool {
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
	for _, l := range o.local {
		if l == addr {
			return true
		}
	}
	return false
}
