package settings

import (
	"fmt"
	"net"
	"net/url"
	"strings"
)

// ReadLDAPBind reads the settings of AUTH=ldap:FILE: those of an ldap: source whose filter finds
// the user's entry.
func ReadLDAPBind(open Open, path string) (LDAP, error) {
	c, err := ReadLDAP(open, path)
	if err == nil {
		c.Attributes, c.Limit = nil, 2 // two are too many
	}
	return c, err
}

// OAuth2 is the server that AUTH=oauth2:FILE asks about tokens (RFC 7662).
type OAuth2 struct {
	URL          string
	ClientID     string
	ClientSecret string
	CAFile       string
	Username     string   // the member of the answer that has the user's name
	Scopes       []string // that a token must have
}

// ReadOAuth2 reads the settings.
func ReadOAuth2(open Open, path string) (OAuth2, error) {
	f, err := read(open, path, "introspection_url", "client_id", "client_secret", "client_secret_file", "ca_file", "username", "scope")
	if err != nil {
		return OAuth2{}, err
	}
	c := OAuth2{
		URL:          f.need("introspection_url", "https://HOST/PATH, the introspection endpoint of the server"),
		ClientID:     f.need("client_id", "the name by which the server knows this machine"),
		ClientSecret: f.secret("client_secret", "client_secret_file"),
		CAFile:       f.abs(f.get("ca_file")),
		Username:     f.get("username"),
		Scopes:       strings.Fields(f.get("scope")),
	}
	if c.Username == "" {
		c.Username = "username"
	}
	line := f.values["introspection_url"].line
	u, err := url.Parse(c.URL)
	switch {
	case c.URL == "":
	case err != nil:
		f.bad(line, fmt.Sprintf("introspection_url: %v", err))
	case u.Host == "" || u.Scheme != "https" && u.Scheme != "http":
		f.bad(line, fmt.Sprintf("introspection_url = %s: want https://HOST/PATH", c.URL))
	case u.Scheme == "http" && !isLoopback(u.Hostname()):
		f.bad(line, fmt.Sprintf("introspection_url = %s: tokens are as good as passwords; want https:// unless the server is this machine", c.URL))
	case u.User != nil:
		f.bad(line, "introspection_url has a password; it belongs in client_secret_file")
	}
	return c, f.err()
}

func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
