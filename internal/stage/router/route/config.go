package route

import (
	"errors"
	"strings"

	"zmailer/internal/mail/contentrules"
	"zmailer/internal/run/config"
	"zmailer/internal/stage/router/policy"
	"zmailer/internal/stage/router/rules"
	"zmailer/internal/table"
	"zmailer/internal/table/text"
)

// ConfigFrom takes the settings that concern routing from zmailer.conf. Its errors are
// *config.Error.
func ConfigFrom(c *config.Config) (out Config, err error) {
	if out.Hostname, err = c.Hostname(); err != nil {
		return Config{}, err
	}
	if out.PostmanCopy, err = c.Bool("POSTMANCOPY", false); err != nil {
		return Config{}, err
	}
	if out.Trusted, err = uidsOf(c.List("TRUSTED")); err != nil {
		return Config{}, c.Invalid("TRUSTED", "cannot be used", err)
	}
	if out.HideClient, err = c.Bool("HIDECLIENT", false); err != nil {
		return Config{}, err
	}
	size, err := c.Size("BODYRULESSIZE", contentrules.DefaultBodySize)
	if err != nil {
		return Config{}, err
	}
	out.BodyRulesSize = int(size)
	out.OwnSenders = c.String("SENDERCHECK", "any") == "owner"
	if out.Masquerade, err = table.Split(c.String("MASQUERADE", "")); err != nil {
		return Config{}, c.Invalid("MASQUERADE", "cannot be used", err)
	}
	if out.LookupTimeout, err = c.Duration("LOOKUPTIMEOUT", table.DefaultTimeout); err != nil {
		return Config{}, err
	}
	if out.LookupKeep, err = c.Duration("LOOKUPKEEP", table.DefaultTimeout); err != nil {
		return Config{}, err
	}
	if out.LookupParallel, err = c.Int("LOOKUPPARALLEL", table.DefaultParallel); err != nil {
		return Config{}, err
	}
	if out.PolicySteps, err = c.Int("POLICYSTEPS", policy.DefaultSteps); err != nil {
		return Config{}, err
	}
	if out.PolicyTime, err = c.Duration("POLICYTIME", policy.DefaultTime); err != nil {
		return Config{}, err
	}
	out.Rules, err = rulesFrom(c)
	out.Rules.Source = table.Options{Timeout: out.LookupTimeout, Keep: out.LookupKeep, Parallel: out.LookupParallel}
	return out, err
}

// off is the value of a setting that is switched off.
const off = "off"

// rulesFrom takes the settings from zmailer.conf that say where a recipient goes.
func rulesFrom(c *config.Config) (rules.Config, error) {
	out := rules.Config{
		Dir:        c.Dir,
		Postmaster: c.String("POSTMASTER", "postmaster"),
		LocalUsers: c.String("LOCALUSERS", "passwd"),
		Subaddress: orNothing(c.Text("SUBADDRESS", "+")),
		Forward:    orNothing(c.Text("FORWARD", "~/.forward")),
		Sources:    map[text.Kind][]string{},
	}
	var err error
	for _, kind := range text.Kinds() {
		if kind == text.Masquerade {
			continue
		}
		setting := strings.ToUpper(string(kind))
		if out.Sources[kind], err = table.Split(c.String(setting, "")); err != nil {
			return rules.Config{}, c.Invalid(setting, "cannot be used", err)
		}
		for _, source := range out.Sources[kind] {
			if rules.IsNumber(kind, source) {
				continue
			}
			if _, err := table.Parse(source, c.Dir); err != nil {
				return rules.Config{}, c.Invalid(setting, "cannot be used", err)
			}
		}
	}
	if strings.ContainsAny(out.Subaddress, "@\" \t") {
		return rules.Config{}, c.Invalid("SUBADDRESS", "cannot be used", errors.New("a blank, quote or @ parts no user and tag"))
	}
	out.Classes, err = classesFrom(c)
	return out, err
}

// classesFrom takes the settings of virtual domains that are no tables.
func classesFrom(c *config.Config) (out rules.Classes, err error) {
	out.Base = c.String("VIRTUALMAILBOXBASE", "")
	least, err := c.Int("VIRTUALMINIMUMUID", rules.DefaultMinimumUID)
	if err != nil {
		return out, err
	}
	out.MinimumUID = uint32(least)
	to, err := text.ParseRoute(c.String("VIRTUALTRANSPORT", rules.Virtual+"!"))
	if err == nil && to.Channel == rules.Local {
		err = errors.New("mailboxes of virtual domains are not those of local users; want virtual! or a next hop")
	}
	if err != nil {
		return out, c.Invalid("VIRTUALTRANSPORT", "cannot be used", err)
	}
	out.Transport = &to
	if c.String("VIRTUALMAILBOXMAPS", "") != "" && out.Base == "" && to.Channel == rules.Virtual {
		return out, c.Invalid("VIRTUALMAILBOXMAPS", "needs VIRTUALMAILBOXBASE, the directory that its paths are below", nil)
	}
	if c.String("VIRTUALMAILBOXDOMAINS", "") != "" && c.String("VIRTUALMAILBOXMAPS", "") == "" && to.Channel == rules.Virtual {
		return out, c.Invalid("VIRTUALMAILBOXDOMAINS", "needs VIRTUALMAILBOXMAPS, or a next hop in VIRTUALTRANSPORT that has the mailboxes", nil)
	}
	return out, nil
}

func orNothing(s string) string {
	if s == off {
		return ""
	}
	return s
}
