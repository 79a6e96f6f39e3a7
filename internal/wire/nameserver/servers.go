package nameserver

import (
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/miekg/dns"
)

// confPeriod is how long a resolv.conf is used without a look.
const confPeriod = 30 * time.Second

// serverList is the name servers to ask, in order.
type serverList struct {
	mu      sync.Mutex
	servers []string
	read    time.Time
}

// get returns the servers; a resolv.conf that has changed is noticed within
// confPeriod, and one that cannot be read leaves the last list in use.
func (l *serverList) get(cfg *Config) ([]string, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := cfg.Now()
	if l.servers != nil && (cfg.Server != "" || now.Sub(l.read) < confPeriod) {
		return l.servers, nil
	}
	if cfg.Server != "" {
		l.servers = []string{withPort(cfg.Server)}
		return l.servers, nil
	}
	l.read = now
	conf, err := dns.ClientConfigFromFile(cfg.Conf)
	if err != nil && l.servers == nil {
		return nil, fmt.Errorf("read name servers: %w", err)
	}
	if err != nil {
		return l.servers, nil
	}
	l.servers = l.servers[:0:0]
	for _, s := range conf.Servers {
		l.servers = append(l.servers, net.JoinHostPort(s, conf.Port))
	}
	if len(l.servers) == 0 {
		// resolv.conf(5): without a nameserver line, the one on this machine.
		l.servers = []string{"127.0.0.1:53"}
	}
	return l.servers, nil
}

// withPort adds the port of DNS to a server that is given without one.
func withPort(server string) string {
	if _, _, err := net.SplitHostPort(server); err == nil {
		return server
	}
	return net.JoinHostPort(server, "53")
}
