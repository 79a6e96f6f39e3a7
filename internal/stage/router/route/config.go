package route

import (
	"errors"
	"strings"

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
	for kind, setting := range map[text.Kind]string{
		text.Routes: "ROUTES", text.Aliases: "ALIASES", text.FQDNAliases: "FQDNALIASES", text.LocalNames: "LOCALNAMES",
	} {
		if out.Sources[kind], err = table.Split(c.String(setting, "")); err != nil {
			return rules.Config{}, c.Invalid(setting, "cannot be used", err)
		}
		for _, source := range out.Sources[kind] {
			if _, err := table.Parse(source, c.Dir); err != nil {
				return rules.Config{}, c.Invalid(setting, "cannot be used", err)
			}
		}
	}
	if strings.ContainsAny(out.Subaddress, "@\" \t") {
		return rules.Config{}, c.Invalid("SUBADDRESS", "cannot be used", errors.New("a blank, quote or @ parts no user and tag"))
	}
	return out, nil
}

func orNothing(s string) string {
	if s == off {
		return ""
	}
	return s
}
