package smtpserver

import (
	"errors"
	"net"
	"net/netip"
	"path/filepath"
	"strings"

	"zmailer/internal/postoffice"
	"zmailer/internal/run/config"
	"zmailer/internal/run/metrics"
)

// DefaultMaxConnections is how many clients are served at once if nothing else is
// said.
const DefaultMaxConnections = 500

// DefaultMinRate is how many bytes a second a client must send of a message on average
// if nothing else is said.
const DefaultMinRate = 100

// ConfigFrom takes the settings that concern this stage from zmailer.conf. Its
// errors are *config.Error.
func ConfigFrom(c *config.Config) (Config, error) {
	out := Config{
		PostOffice:        c.PostOffice(),
		Strict:            c.String("SYNC", "normal") == "strict",
		Listen:            c.List("SMTPLISTEN"),
		SubmissionListen:  c.List("SUBMISSIONLISTEN"),
		SubmissionsListen: c.List("SUBMISSIONSLISTEN"),
		LMTPListen:        c.List("LMTPLISTEN"),
		LocalNames:        c.Path("localnames"),
		MaxConnections:    DefaultMaxConnections,
	}
	switch {
	case len(out.Listen) == 0:
		out.Listen, out.ListenUnset = []string{"127.0.0.1:2525"}, true
	case len(out.Listen) == 1 && out.Listen[0] == "off":
		out.Listen = nil
	}
	for name, addrs := range map[string][]string{
		"SMTPLISTEN": out.Listen, "SUBMISSIONLISTEN": out.SubmissionListen, "SUBMISSIONSLISTEN": out.SubmissionsListen,
	} {
		if err := CheckListen(addrs); err != nil {
			return Config{}, c.Invalid(name, "cannot be used", err)
		}
	}
	for _, addr := range out.LMTPListen {
		if filepath.IsAbs(addr) {
			continue
		}
		if err := CheckListen([]string{addr}); err != nil {
			return Config{}, c.Invalid("LMTPLISTEN", "cannot be used", errors.New(addr+" is neither the path of a socket, like /run/zmailer/lmtp, nor host:port"))
		}
	}
	var err error
	if out.Hostname, err = c.Hostname(); err != nil {
		return Config{}, err
	}
	nets := c.List("RELAYNETS")
	if len(nets) == 0 {
		nets = []string{"127.0.0.0/8", "::1/128"}
	}
	if out.RelayNets, err = parseNets(nets); err != nil {
		return Config{}, c.Invalid("RELAYNETS", "cannot be used", err)
	}
	if err := readTransport(&out, c); err != nil {
		return Config{}, err
	}
	if out.MaxSize, err = c.Size("MAXSIZE", 200<<20); err != nil {
		return Config{}, err
	}
	if out.MaxRecipients, err = c.Int("MAXRCPT", 10000); err != nil {
		return Config{}, err
	}
	if out.MaxRecipientsUnauth, err = c.Int("MAXRCPTUNAUTH", 1000); err != nil {
		return Config{}, err
	}
	if out.Users, err = usersFrom(c); err != nil {
		return Config{}, err
	}
	if out.Limits, err = limitsFrom(c); err != nil {
		return Config{}, err
	}
	if out.MaxConnections, err = c.Int("SMTPCONNECTIONS", DefaultMaxConnections); err != nil {
		return Config{}, err
	}
	dirs, err := postoffice.ParseRouterDirs(c.List("ROUTERDIRS"))
	if err != nil {
		return Config{}, c.Invalid("ROUTERDIRS", "cannot be used", err)
	}
	priority, err := c.Int("SMTPPRIORITY", 0)
	if err != nil {
		return Config{}, err
	}
	out.RouterDir = postoffice.PriorityDir(dirs, priority)
	if out.Access, err = accessFrom(c); err != nil {
		return Config{}, err
	}
	if out.Filters, err = filtersFrom(c); err != nil {
		return Config{}, err
	}
	place, err := c.Metrics("smtpserver")
	out.Metrics = metrics.New("smtpserver", place)
	return out, err
}

// readTransport reads the settings for TLS and proxies, and the like.
func readTransport(out *Config, c *config.Config) error {
	for _, name := range c.List("TLSCERT") {
		out.TLS.Certs = append(out.TLS.Certs, beside(c, name))
	}
	for _, name := range c.List("TLSKEY") {
		out.TLS.Keys = append(out.TLS.Keys, beside(c, name))
	}
	if err := out.TLS.check(); err != nil {
		return c.Invalid("TLSKEY", "cannot be used", err)
	}
	if len(out.SubmissionsListen) > 0 && len(out.TLS.Certs) == 0 {
		return c.Invalid("SUBMISSIONSLISTEN", "needs TLSCERT", nil)
	}
	var err error
	if out.TLS.Ask, err = c.Bool("TLSASKCERT", false); err != nil {
		return err
	}
	if out.ProxyNets, err = parseNets(c.List("PROXYNETS")); err != nil {
		return c.Invalid("PROXYNETS", "cannot be used", err)
	}
	if out.XClientNets, err = parseNets(c.List("XCLIENTNETS")); err != nil {
		return c.Invalid("XCLIENTNETS", "cannot be used", err)
	}
	if out.ReverseLookup, err = c.Bool("REVERSELOOKUP", false); err != nil {
		return err
	}
	if out.MinRate, err = c.Int("MINRATE", DefaultMinRate); err != nil {
		return err
	}
	out.Resolver = c.String("RESOLVER", "")
	return nil
}

// beside makes a path of a name that stands beside zmailer.conf.
func beside(c *config.Config, name string) string {
	if path := c.Path(name); path != "" && !filepath.IsAbs(name) {
		return path
	}
	return name
}

// CheckListen tells whether every address is host:port.
func CheckListen(addrs []string) error {
	for _, a := range addrs {
		if _, _, err := net.SplitHostPort(a); err != nil {
			return errors.New(a + " is not host:port, like 127.0.0.1:2525 or [::1]:2525")
		}
	}
	return nil
}

// parseNets reads networks, "192.0.2.0/24", and single addresses.
func parseNets(list []string) ([]netip.Prefix, error) {
	var nets []netip.Prefix
	for _, s := range list {
		if strings.Contains(s, "/") {
			n, err := netip.ParsePrefix(s)
			if err != nil {
				return nil, errors.New(s + " is not a network, like 192.0.2.0/24 or 2001:db8::/32")
			}
			nets = append(nets, n.Masked())
			continue
		}
		a, err := netip.ParseAddr(s)
		if err != nil {
			return nil, errors.New(s + " is neither a network nor an address")
		}
		nets = append(nets, netip.PrefixFrom(a, a.BitLen()))
	}
	return nets, nil
}
