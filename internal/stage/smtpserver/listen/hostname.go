package listen

import (
	"context"
	"net"
	"net/netip"
	"strings"
)

// maxNames is how many names of a client are verified.
const maxNames = 3

// HostName returns a client's name: one that its address leads to and that leads back to
// it. "": there is none, or no answer in time. server is the host:port of a name server; "":
// those of /etc/resolv.conf.
func HostName(ctx context.Context, server string, addr netip.Addr) string {
	addr = addr.Unmap().WithZone("")
	r := &net.Resolver{PreferGo: true}
	if server != "" {
		r.Dial = func(ctx context.Context, network, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, network, server)
		}
	}
	names, err := r.LookupAddr(ctx, addr.String())
	if err != nil {
		return ""
	}
	for _, name := range names[:min(len(names), maxNames)] {
		back, err := r.LookupNetIP(ctx, "ip", name)
		if err != nil {
			continue
		}
		for _, b := range back {
			if b.Unmap() == addr {
				return strings.TrimSuffix(name, ".")
			}
		}
	}
	return ""
}
