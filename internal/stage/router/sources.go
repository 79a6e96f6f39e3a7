package router

import (
	"context"
	"errors"
	"strings"

	"zmailer/internal/run/config"
	"zmailer/internal/stage/router/rules"
	"zmailer/internal/table"
	"zmailer/internal/table/text"
)

// off is what stands in a setting for nothing.
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

// CheckTables reads all tables and lists, asks each source once, tries router.star, and
// tells what is wrong with them, as *config.Error.
func CheckTables(c Config) error {
	c.Rules.Hostname = c.Hostname
	r, err := rules.New(c.Rules)
	if err != nil {
		return err
	}
	return errors.Join(r.Check(context.Background()), r.Close(), checkPolicy(c))
}
