package route

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"zmailer/internal/mail/contentrules"
	"zmailer/internal/run/config"
	"zmailer/internal/stage/router/policy"
	"zmailer/internal/stage/router/rules"
	"zmailer/internal/table"
	"zmailer/internal/table/text"
)

// ConfigFrom takes the settings that concern routing from zmailer.conf. Its error joins an
// *config.Error for each setting that cannot be used.
func ConfigFrom(c *config.Config) (Config, error) {
	s := config.NewReader(c)
	out := Config{
		Hostname: s.Hostname(), PostmanCopy: s.Bool("POSTMANCOPY", false), OwnSenders: c.String("SENDERCHECK", "any") == "owner",
		LookupTimeout: s.Duration("LOOKUPTIMEOUT", table.DefaultTimeout), LookupKeep: s.Duration("LOOKUPKEEP", table.DefaultTimeout),
		LookupParallel: s.Int("LOOKUPPARALLEL", table.DefaultParallel),
		PolicySteps:    s.Int("POLICYSTEPS", policy.DefaultSteps), PolicyTime: s.Duration("POLICYTIME", policy.DefaultTime),
		Masquerade: sources(s, "MASQUERADE", func(string) bool { return false }),
	}
	out.HideClient = s.Bool("HIDECLIENT", false)
	out.BodyRulesSize = int(s.Size("BODYRULESSIZE", contentrules.DefaultBodySize))
	var err error
	out.Trusted, err = uidsOf(c.List("TRUSTED"))
	s.Use("TRUSTED", err)
	out.ContentFilter, out.FilterNets = contentFilter(s), filterNets(s)
	out.SRS = srsFrom(s, out.Hostname)
	out.Rules = rulesFrom(s)
	out.Keeper, out.Rules.Keeper = s.Keeper(), s.Keeper()
	out.Rules.Source = table.Options{Keeper: s.Keeper(), Timeout: out.LookupTimeout, Keep: out.LookupKeep, Parallel: out.LookupParallel}
	return out, s.Err()
}

// off is the value of a setting that is switched off.
const off = "off"

// rulesFrom takes the settings from zmailer.conf that say where a recipient goes.
func rulesFrom(s *config.Reader) rules.Config {
	out := rules.Config{
		Dir:        s.Dir,
		Postmaster: s.String("POSTMASTER", "postmaster"),
		LocalUsers: s.String("LOCALUSERS", "passwd"),
		Subaddress: orNothing(s.Text("SUBADDRESS", "+")),
		Forward:    orNothing(s.Text("FORWARD", "~/.forward")),
		Sources:    map[text.Kind][]string{},
		Extend:     extendFrom(s),
	}
	for _, kind := range text.Kinds() {
		if kind != text.Masquerade {
			out.Sources[kind] = sources(s, strings.ToUpper(string(kind)), func(source string) bool { return rules.IsNumber(kind, source) })
		}
	}
	if strings.ContainsAny(out.Subaddress, "@\" \t") {
		s.Use("SUBADDRESS", errors.New("a blank, quote or @ parts no user and tag"))
	}
	s.Use("FORWARD", rules.CheckForward(out.Forward))
	out.Classes = classesFrom(s)
	return out
}

// extendFrom takes the tables that pass tags on.
func extendFrom(s *config.Reader) (out rules.Extend) {
	for _, word := range strings.Fields(strings.ReplaceAll(s.Text("PROPAGATEUNMATCHEDEXTENSIONS", "virtual"), ",", " ")) {
		out.Virtual = out.Virtual || word == "virtual"
		out.Alias = out.Alias || word == "alias"
	}
	return out
}

// classesFrom takes the settings of virtual domains that are no tables.
func classesFrom(s *config.Reader) rules.Classes {
	to, err := text.ParseRoute(s.String("VIRTUALTRANSPORT", rules.Virtual+"!"))
	if err == nil && to.Channel == rules.Local {
		err = errors.New("mailboxes of virtual domains are not those of local users; want virtual! or a next hop")
	}
	s.Use("VIRTUALTRANSPORT", err)
	out := rules.Classes{Base: s.String("VIRTUALMAILBOXBASE", ""), MinimumUID: uint32(s.Int("VIRTUALMINIMUMUID", rules.DefaultMinimumUID)), Transport: &to}
	if s.String("VIRTUALMAILBOXMAPS", "") != "" && out.Base == "" && to.Channel == rules.Virtual {
		s.Add(s.Invalid("VIRTUALMAILBOXMAPS", "needs VIRTUALMAILBOXBASE, the directory that its paths are below", nil))
	}
	if s.String("VIRTUALMAILBOXDOMAINS", "") != "" && s.String("VIRTUALMAILBOXMAPS", "") == "" && to.Channel == rules.Virtual {
		s.Add(s.Invalid("VIRTUALMAILBOXDOMAINS", "needs VIRTUALMAILBOXMAPS, or a next hop in VIRTUALTRANSPORT that has the mailboxes", nil))
	}
	verify, err := s.AddressVerify()
	s.Add(err)
	out.Verify, out.VerifyRelay, out.VerifyVirtual = verify.On, verify.Relay, verify.Virtual
	return out
}

// contentFilter reads CONTENTFILTER: channel!host, or as Postfix has it, transport:nexthop. Nil:
// there is none.
func contentFilter(s *config.Reader) *text.Route {
	value := s.String("CONTENTFILTER", "")
	if value == "" {
		return nil
	}
	to, err := text.ParseFilter(value)
	if err == nil && to.Host == "" {
		err = errors.New("without a host mail would go past the filter; want a host, like smtpx!127.0.0.1:10024")
	}
	if err == nil && s.String("REINJECTLISTEN", "") == "" {
		err = errors.New("mail comes back from the filter to an address of REINJECTLISTEN, like 127.0.0.1:10025; it is not set")
	}
	for _, name := range []string{"SMTPLISTEN", "SUBMISSIONLISTEN", "SUBMISSIONSLISTEN", "REINJECTLISTEN"} {
		if err == nil && slices.Contains(s.List(name), to.Host) {
			err = fmt.Errorf("%s is an address of this server (%s), not of a filter", to.Host, name)
		}
	}
	s.Use("CONTENTFILTER", err)
	return &to
}

// filterNets reads REINJECTNETS, whose mistakes smtpserver reports.
func filterNets(s *config.Reader) (nets []netip.Prefix) {
	list := s.List("REINJECTNETS")
	if len(list) == 0 {
		list = []string{"127.0.0.0/8", "::1/128"}
	}
	for _, word := range list {
		if n, err := config.ParseNet(word); err == nil {
			nets = append(nets, n)
		}
	}
	return nets
}

// sources splits a setting into its sources, and checks how each is written, but for those that
// are no tables.
func sources(s *config.Reader, setting string, other func(source string) bool) []string {
	list, err := table.Split(s.String(setting, ""))
	s.Use(setting, err)
	for _, source := range list {
		if !other(source) {
			_, err := table.Parse(source, s.Dir)
			s.Use(setting, err)
		}
	}
	return list
}

func orNothing(s string) string {
	if s == off {
		return ""
	}
	return s
}
