package smtpserver

import (
	"errors"
	"net"
	"net/netip"
	"path/filepath"
	"strings"

	"zmailer/internal/config"
	"zmailer/internal/postoffice"
)

// DefaultMaxConnections is how many clients are served at once if nothing else is
// said.
const DefaultMaxConnections = 500

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
	if len(out.Listen) == 0 {
		out.Listen = []string{"127.0.0.1:2525"}
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
	if out.MaxSize, err = c.Size("MAXSIZE", 200<<20); err != nil {
		return Config{}, err
	}
	if out.MaxRecipients, err = c.Int("MAXRCPT", 10000); err != nil {
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
	return out, nil
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
