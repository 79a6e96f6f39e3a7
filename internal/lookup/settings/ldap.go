package settings

import (
	"fmt"
	"net/url"
	"strings"
)

// LDAP is what an ldap: source asks.
type LDAP struct {
	URLs       []string // ldap://, ldaps://, ldapi://; tried in this order
	StartTLS   bool
	CAFile     string // who signs the servers' certificates; "": whom the system trusts
	BindDN     string
	Password   string
	Base       string
	Scope      string // sub, one, base
	Filter     string // with %s, %u, %d
	Attributes []string
	Limit      int // entries that one key may have
	// IgnoreReferrals: parts of the tree that are on other servers do not matter.
	IgnoreReferrals bool
}

// ReadLDAP reads the settings of an ldap: source.
func ReadLDAP(open Open, path string) (LDAP, error) {
	f, err := read(open, path, "url", "start_tls", "ca_file", "bind_dn", "password", "password_file", "base", "scope", "filter", "attributes", "limit", "referrals")
	if err != nil {
		return LDAP{}, err
	}
	c := LDAP{
		URLs:       strings.Fields(f.need("url", "ldap://HOST, ldaps://HOST or ldapi:///PATH; more are tried in their order")),
		StartTLS:   f.word("start_tls", "no", "yes") == "yes",
		CAFile:     f.abs(f.get("ca_file")),
		BindDN:     f.get("bind_dn"),
		Password:   f.secret("password", "password_file"),
		Base:       f.need("base", "the DN that the search starts at"),
		Scope:      f.word("scope", "sub", "one", "base"),
		Filter:     f.need("filter", "(mailLocalAddress=%s)"),
		Attributes: strings.Fields(f.get("attributes")),
		Limit:      f.number("limit", 100),

		IgnoreReferrals: f.word("referrals", "error", "ignore") == "ignore",
	}
	for _, u := range c.URLs {
		f.checkURL(u, c.StartTLS)
	}
	// A bind with a name and no password is an anonymous one that looks like it worked
	// (RFC 4513 §5.1.2).
	if c.BindDN != "" && c.Password == "" {
		f.bad(f.values["bind_dn"].line, "bind_dn without a password: the server would take it for an anonymous bind")
	}
	if c.Filter != "" {
		f.checkPlaces("filter", c.Filter)
	}
	return c, f.err()
}

func (f *file) checkURL(text string, startTLS bool) {
	line := f.values["url"].line
	u, err := url.Parse(text)
	switch {
	case err != nil:
		f.bad(line, fmt.Sprintf("url %s: %v", text, err))
	case u.Scheme != "ldap" && u.Scheme != "ldaps" && u.Scheme != "ldapi":
		f.bad(line, fmt.Sprintf("url %s: want ldap://, ldaps:// or ldapi://", text))
	case u.Scheme == "ldapi" && u.Path == "" || u.Scheme != "ldapi" && u.Host == "":
		f.bad(line, fmt.Sprintf("url %s: it names no server", text))
	case u.Scheme != "ldapi" && u.Path != "" && u.Path != "/":
		f.bad(line, fmt.Sprintf("url %s: base, scope and filter have settings of their own", text))
	case startTLS && u.Scheme != "ldap":
		f.bad(line, fmt.Sprintf("url %s: start_tls is for ldap:// alone", text))
	}
}

// Fill puts a key into the filter's places. escape makes text harmless.
func (c LDAP) Fill(key string, escape func(string) string) string { return fill(c.Filter, key, escape) }
