// Package nameserver asks recursive name servers one question at a time: those of
// /etc/resolv.conf or one that is named, by UDP, and by TCP where the answer is cut.
//
//	c := nameserver.New(nameserver.Config{Server: "127.0.0.1:53"})
//	m, err := c.Exchange(ctx, "example.org.", dns.TypeMX)
//
// It owns nothing on disk and keeps no answers.
//
// Diagnostics: an error means that no server has answered; asking again can help. A name that
// does not exist is an answer (dns.RcodeNameError).
package nameserver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/miekg/dns"
)

// edns is the size of a UDP answer that is asked for: what passes every network
// without fragments. Larger ones come by TCP.
const edns = 1232

// maxName is how long a name may be with its final dot (RFC 1035 section 2.3.4).
const maxName = 254

// Config is which name servers to ask.
type Config struct {
	Server   string        // host:port of the name server; "": those of Conf
	Conf     string        // a resolv.conf(5); "": /etc/resolv.conf
	Timeout  time.Duration // per question and server; 0: 5 s
	Attempts int           // per server; 0: 2
	// Total bounds the time of a question at all servers, of which Most are asked; 0: Timeout alone
	// does, and all are.
	Total time.Duration
	Most  int
	Now   func() time.Time
}

// Client asks name servers. Its methods may be used by many goroutines.
type Client struct {
	cfg     Config
	servers serverList
}

// New makes a client. It sends no query yet.
func New(cfg Config) *Client {
	cfg.Conf = cmp.Or(cfg.Conf, "/etc/resolv.conf")
	cfg.Timeout = cmp.Or(cfg.Timeout, 5*time.Second)
	cfg.Attempts = cmp.Or(cfg.Attempts, 2)
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	return &Client{cfg: cfg}
}

// Servers returns the servers that are asked now, in order.
func (c *Client) Servers() ([]string, error) { return c.servers.get(&c.cfg) }

// Exchange asks the servers in turn until one returns an answer or that the name
// does not exist. The name has its final dot, and escapes as in a zone file.
func (c *Client) Exchange(ctx context.Context, name string, qtype uint16) (*dns.Msg, error) {
	servers, err := c.Servers()
	if err != nil {
		return nil, err
	}
	if _, ok := dns.IsDomainName(name); !ok || len(name) > maxName {
		// It cannot exist; a question about it cannot even be written.
		return &dns.Msg{MsgHdr: dns.MsgHdr{Rcode: dns.RcodeNameError}}, nil
	}
	if c.cfg.Most > 0 {
		servers = servers[:min(len(servers), c.cfg.Most)]
	}
	each := c.cfg.Timeout
	if c.cfg.Total > 0 {
		each = c.cfg.Total / time.Duration(c.cfg.Attempts*len(servers))
	}
	var last error
	for range c.cfg.Attempts {
		for _, s := range servers {
			m, err := exchangeWith(ctx, s, name, qtype, each)
			if err == nil && (m.Rcode == dns.RcodeSuccess || m.Rcode == dns.RcodeNameError) {
				return m, nil
			}
			if err == nil {
				err = errors.New(dns.RcodeToString[m.Rcode])
			}
			last = fmt.Errorf("name server %s: %w", s, err)
			if ctx.Err() != nil {
				return nil, last
			}
		}
	}
	return nil, last
}

// exchangeWith asks one server: by UDP, again without EDNS if that is what it does
// not know, and by TCP if the answer was cut.
func exchangeWith(ctx context.Context, server, name string, qtype uint16, timeout time.Duration) (*dns.Msg, error) {
	ask := new(dns.Msg).SetQuestion(name, qtype)
	ask.SetEdns0(edns, false)
	// RFC 6840 §5.7: we want to know whether the answer was validated.
	ask.AuthenticatedData = true
	udp := dns.Client{Timeout: timeout}
	m, _, err := udp.ExchangeContext(ctx, ask, server)
	if err == nil && (m.Rcode == dns.RcodeFormatError || m.Rcode == dns.RcodeNotImplemented) {
		ask.Extra = nil
		m, _, err = udp.ExchangeContext(ctx, ask, server)
	}
	if err != nil || !m.Truncated {
		return m, err
	}
	tcp := dns.Client{Net: "tcp", Timeout: timeout}
	m, _, err = tcp.ExchangeContext(ctx, ask, server)
	return m, err
}
