package tasmtp

import (
	"context"
	"fmt"
	"io"
	"strings"

	"zmailer/internal/disk/durable"
	"zmailer/internal/run/config"
)

// TestTLS says what is wanted of TLS towards a destination, [CHANNEL/]HOST, and why, for
// each of its servers. It looks up what mail would, reads the MTA-STS policies that the
// postoffice keeps, if there is one, and connects to no mail server. The error is a
// *config.Error.
func TestTLS(ctx context.Context, c Config, where string, out io.Writer) error {
	channel, host, ok := strings.Cut(where, "/")
	if !ok {
		channel, host = "smtp", where
	}
	if c.PostOffice != "" {
		if disk, err := durable.NewOS(c.PostOffice); err == nil {
			defer disk.Close()
			c.Security.Disk, c.Security.Look = disk, true
		}
	}
	r, err := NewRelay(c)
	if err != nil {
		return err
	}
	defer r.Close()
	d, err := parseDestination(channel, strings.ToLower(host), r.port)
	if err != nil {
		return &config.Error{File: "command line", Reason: where, Err: err}
	}
	t, err := r.terms(&d, "", false, nil)
	if err != nil {
		return &config.Error{File: c.Security.Credentials, Reason: "auth=", Err: err}
	}
	var b strings.Builder
	defer func() { io.WriteString(out, b.String()) }()
	if t.policy == nil {
		b.WriteString("a socket of this machine: no TLS\n")
		return nil
	}
	fmt.Fprintf(&b, "policy: %s (%s)\n", t.policy.Text, t.policy.Where)
	if t.account != nil {
		fmt.Fprintf(&b, "login: %s (%s)\n", t.account.User, t.account.Where)
	}
	if err := r.resolver.Trusted(); err != nil {
		fmt.Fprintf(&b, "DANE: %v\n", err)
	}
	for s, why := range r.servers(ctx, &d) {
		name := s.name
		if name == "" && len(s.addrs) > 0 {
			name = s.addrs[0].address
		}
		if name == "" { // its servers are not known
			name = d.name
		}
		if why == nil {
			var g *guard
			if g, why = r.guard(ctx, t, &d, &s); why == nil {
				fmt.Fprintf(&b, "%s: %s\n\t%s\n", name, g, g.why)
				continue
			}
		}
		fmt.Fprintf(&b, "%s: not used: %s %s\n", name, why.code, why.reply)
	}
	return nil
}

// String is what a guard wants, in words.
func (g *guard) String() string {
	switch {
	case g.off:
		return "no TLS"
	case g.must && g.check != nil && !g.soft:
		return "TLS, verified; else mail waits"
	case g.must:
		return "TLS, not verified; else mail waits"
	case g.check != nil:
		return "TLS if it is offered; what is wrong with it is counted"
	}
	return "TLS if it is offered, not verified"
}
