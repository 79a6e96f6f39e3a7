package smtpserver

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"time"

	"zmailer/internal/postoffice"
	"zmailer/internal/run/config"
	"zmailer/internal/run/metrics"
	"zmailer/internal/stage/smtpserver/auth"
	"zmailer/internal/stage/smtpserver/content/checks"
	"zmailer/internal/stage/smtpserver/policy"
	"zmailer/internal/stage/smtpserver/policy/limits"
	"zmailer/internal/stage/smtpserver/policy/rcptcheck"
	"zmailer/internal/table"
	"zmailer/internal/wire/milter"
)

// DefaultMaxConnections is the default of SMTPCONNECTIONS.
const DefaultMaxConnections = 500

// DefaultMinRate is the default of MINRATE, bytes of a message per second.
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
	if err := out.TLS.Check(); err != nil {
		return c.Invalid("TLSKEY", "cannot be used", err)
	}
	if len(out.SubmissionsListen) > 0 && len(out.TLS.Certs) == 0 {
		return c.Invalid("SUBMISSIONSLISTEN", "needs TLSCERT", nil)
	}
	var err error
	if out.TLS.Ask, err = c.Bool("TLSASKCERT", false); err != nil {
		return err
	}
	if out.ProxyNets, err = netsFrom(c, "PROXYNETS", nil); err != nil {
		return err
	}
	if out.XClientNets, err = netsFrom(c, "XCLIENTNETS", nil); err != nil {
		return err
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

// beside makes a path of the name of a file beside zmailer.conf.
func beside(c *config.Config, name string) string {
	if path := c.Path(name); path != "" && !filepath.IsAbs(name) {
		return path
	}
	return name
}

// CheckListen reports the first address that is not host:port.
func CheckListen(addrs []string) error {
	for _, a := range addrs {
		if _, _, err := net.SplitHostPort(a); err != nil {
			return errors.New(a + " is not host:port, like 127.0.0.1:2525 or [::1]:2525")
		}
	}
	return nil
}

// netsFrom reads a setting of networks; without it, def.
func netsFrom(c *config.Config, name string, def []string) ([]netip.Prefix, error) {
	list := c.List(name)
	if len(list) == 0 {
		list = def
	}
	nets, err := parseNets(list)
	if err != nil {
		return nil, c.Invalid(name, "cannot be used", err)
	}
	return nets, nil
}

// loopbackNets are the networks of this machine.
var loopbackNets = []string{"127.0.0.0/8", "::1/128"}

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

// accessFrom takes these settings from zmailer.conf.
func accessFrom(c *config.Config) (a policy.Config, err error) {
	a.Dir, a.LocalNamesFile = c.Dir, c.Path("localnames")
	if a.LocalNames, err = sourcesFrom(c, "LOCALNAMES"); err != nil {
		return a, err
	}
	if a.SenderLogin, err = sourcesFrom(c, "SENDERLOGIN"); err != nil {
		return a, err
	}
	if a.Source.Timeout, err = c.Duration("LOOKUPTIMEOUT", table.DefaultTimeout); err != nil {
		return a, err
	}
	if a.Source.Keep, err = c.Duration("LOOKUPKEEP", table.DefaultTimeout); err != nil {
		return a, err
	}
	if a.RelayNets, err = netsFrom(c, "RELAYNETS", loopbackNets); err != nil {
		return a, err
	}
	if a.ETRNNets, err = netsFrom(c, "ETRNNETS", loopbackNets); err != nil {
		return a, err
	}
	a.RcptCheck, err = rcptCheckFrom(c)
	return a, err
}

// sourcesFrom splits a setting into its sources.
func sourcesFrom(c *config.Config, name string) ([]string, error) {
	list, err := table.Split(c.String(name, ""))
	for _, source := range list {
		if err == nil {
			_, err = table.Parse(source, c.Dir)
		}
	}
	if err != nil {
		return nil, c.Invalid(name, "cannot be used", err)
	}
	return list, nil
}

func rcptCheckFrom(c *config.Config) (*policy.RcptCheck, error) {
	word := c.String("RCPTCHECK", "yes")
	switch word {
	case "no":
		return nil, nil
	case "yes", "all":
	default:
		return nil, c.Invalid("RCPTCHECK", "cannot be used", fmt.Errorf("%s is none of yes, all, no", word))
	}
	r := &policy.RcptCheck{All: word == "all", Defer: c.String("RCPTCHECKTROUBLE", "accept") == "defer"}
	var err error
	if r.Time, err = c.Duration("RCPTCHECKTIME", rcptcheck.DefaultTime); err != nil {
		return nil, err
	}
	if r.Keep, err = c.Duration("RCPTCHECKKEEP", rcptcheck.DefaultKeep); err != nil {
		return nil, err
	}
	r.Env = []string{"POSTOFFICE=" + c.PostOffice(), "ZCONFIG=" + c.File}
	return r, nil
}

// usersFrom takes the settings that say who our users are.
func usersFrom(c *config.Config) (u UsersConfig, err error) {
	u.Source, u.Dir = c.String("AUTH", ""), c.Dir
	if u.Source != "" {
		if err := auth.Check(u.Source); err != nil {
			return u, c.Invalid("AUTH", "cannot be used", err)
		}
	}
	u.Plaintext, err = c.Bool("AUTHPLAINTEXT", false)
	return u, err
}

// limitsFrom takes the settings that say what is too much.
func limitsFrom(c *config.Config) (l LimitsConfig, err error) {
	if l.PerAddress, err = c.Int("SMTPPERADDRESS", 50); err != nil {
		return l, err
	}
	if l.Errors, err = c.Int("SMTPERRORS", 20); err != nil {
		return l, err
	}
	if l.MinFree, err = c.Size("MINFREE", 1<<20); err != nil {
		return l, err
	}
	files, err := c.Int("MINFILES", 100)
	if err != nil {
		return l, err
	}
	load, err := c.Int("MAXLOAD", 0)
	if err != nil {
		return l, err
	}
	l.MinFiles, l.MaxLoad = int64(files), float64(load)
	for _, r := range []struct {
		to   *limits.Rate
		text string
		name string
		def  limits.Rate
	}{
		{&l.Failures, c.String("AUTHFAILURES", ""), "AUTHFAILURES", limits.Rate{Count: 20, Per: 10 * time.Minute}},
		{&l.Connections, c.String("SMTPCONNECTRATE", ""), "SMTPCONNECTRATE", limits.Rate{}},
		{&l.Messages, c.String("SMTPMESSAGERATE", ""), "SMTPMESSAGERATE", limits.Rate{}},
		{&l.Recipients, c.String("SMTPRCPTRATE", ""), "SMTPRCPTRATE", limits.Rate{}},
	} {
		if *r.to = r.def; r.text == "" {
			continue
		}
		if *r.to, err = limits.ParseRate(r.text); err != nil {
			return l, c.Invalid(r.name, "cannot be used", err)
		}
	}
	if c.String("LIMITSEXEMPT", "") != "none" {
		if l.Exempt, err = netsFrom(c, "LIMITSEXEMPT", loopbackNets); err != nil {
			return l, err
		}
	}
	l.AcceptBareLF = c.String("SMTPBARELF", "reject") == "accept"
	return l, nil
}

// filtersFrom takes these settings from zmailer.conf.
func filtersFrom(c *config.Config) (f Filters, err error) {
	k := &f.Checks
	if k.SPF, k.DKIM, k.DMARC, err = checks.ParseNames(c.List("CHECKS")); err != nil {
		return f, c.Invalid("CHECKS", "cannot be used", err)
	}
	k.Server = c.String("RESOLVER", "")
	if k.Timeout, err = c.Duration("CHECKTIME", 20*time.Second); err != nil {
		return f, err
	}
	step, err := c.Duration("MILTERTIME", 30*time.Second)
	if err != nil {
		return f, err
	}
	content, err := c.Duration("MILTERCONTENTTIME", 5*time.Minute)
	if err != nil {
		return f, err
	}
	for _, text := range c.List("MILTERS") {
		m, err := milter.Parse(text)
		if err != nil {
			return f, c.Invalid("MILTERS", "cannot be used", err)
		}
		m.Timeout, m.ContentTimeout = step, content
		f.Milters = append(f.Milters, m)
	}
	f.TroubleAccepts = c.String("MILTERTROUBLE", "defer") == "accept"
	return f, nil
}
