package settings

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"zmailer/internal/run/assert"
	"zmailer/internal/run/config"
)

func write(t *testing.T, dir, name, text string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	assert.Must(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

func TestSettingsAreReadAsWritten(t *testing.T) {
	dir := t.TempDir()
	path := write(t, dir, "a", "# users\ndatabase = users.db\nquery = SELECT v\n  FROM a # no comment\n\n  WHERE n = :key\n")
	got, err := ReadSQLite(nil, path)
	if want := (SQLite{filepath.Join(dir, "users.db"), "SELECT v FROM a # no comment WHERE n = :key", 100}); got != want || err != nil {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
	write(t, dir, "secret", "pass word\n")
	path = write(t, dir, "b", "url = ldap://a ldaps://b:636\n ldapi:///run/ldapi\nbase = dc=x\nbind_dn=cn=m\npassword_file = secret\n"+
		"scope = one\nfilter = (mail=%s)\nattributes = maildrop mail\nlimit = 7\nca_file = ca.pem\n")
	gotL, err := ReadLDAP(nil, path)
	want := LDAP{
		URLs: []string{"ldap://a", "ldaps://b:636", "ldapi:///run/ldapi"}, CAFile: filepath.Join(dir, "ca.pem"), BindDN: "cn=m",
		Password: "pass word", Base: "dc=x", Scope: "one", Filter: "(mail=%s)", Attributes: []string{"maildrop", "mail"}, Limit: 7,
	}
	if diff := cmp.Diff(want, gotL); diff != "" || err != nil {
		t.Errorf("%v\n%s", err, diff)
	}
}

func TestBadSettingIsNamedWithFileLineAndReason(t *testing.T) {
	const ldap = "url = ldap://a\nbase = dc=x\nfilter = (mail=%s)\n"
	tests := map[string]struct {
		scheme, text string
		line         int
		want         string
	}{
		"no database":         {"sqlite", "query = SELECT :key\n", 0, "database is not set"},
		"no query":            {"sqlite", "database = x\n", 0, "query is not set"},
		"query without a key": {"sqlite", "database = x\nquery = SELECT '%s'\n", 2, "none of :key"},
		"unknown name":        {"sqlite", "database = x\nquery = SELECT :key\ndbpath = y\n", 3, "dbpath is no setting here; there are database, query"},
		"no equals sign":      {"sqlite", "database x\n", 1, "not NAME = value"},
		"twice":               {"sqlite", "database = x\ndatabase = y\n", 2, "is in line 1 already"},
		"nothing to continue": {"sqlite", "\n  x\n", 2, "begins with a blank"},
		"no url":              {"ldap", "base = x\nfilter = (a=%s)\n", 0, "url is not set"},
		"http":                {"ldap", strings.Replace(ldap, "ldap:", "http:", 1), 1, "want ldap://"},
		"url without server":  {"ldap", strings.Replace(ldap, "//a", "//", 1), 1, "names no server"},
		"url with a base":     {"ldap", strings.Replace(ldap, "//a", "//a/dc=x", 1), 1, "settings of their own"},
		"start_tls and ldaps": {"ldap", strings.Replace(ldap, "ldap:", "ldaps:", 1) + "start_tls = yes\n", 1, "ldap:// alone"},
		"neither yes nor no":  {"ldap", ldap + "start_tls = maybe\n", 4, "want one of no, yes"},
		"filter without key":  {"ldap", strings.Replace(ldap, "%s", "*", 1), 3, "the same for every key"},
		"filter with %x":      {"ldap", strings.Replace(ldap, "%s", "%x%s", 1), 3, "behind each %"},
		"limit of nothing":    {"ldap", ldap + "limit = 0\n", 4, "above 0"},
		"bind without secret": {"ldap", ldap + "bind_dn = cn=x\n", 4, "anonymous"},
		"two passwords":       {"ldap", ldap + "password = a\npassword_file = /dev/null\n", 5, "both set"},
		"no password file":    {"ldap", ldap + "password_file = none\n", 4, "cannot be read"},
		"no such scheme":      {"nis", "", 0, "does not know"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			path := write(t, t.TempDir(), "f", tt.text)
			err := Check(nil, tt.scheme, path)
			bad := (*config.Error)(nil)
			if !errors.As(err, &bad) || bad.File != path || bad.Line != tt.line || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %s:%d and %q", err, path, tt.line, tt.want)
			}
		})
	}
	if err := Check(nil, "ldap", write(t, t.TempDir(), "f", ldap)); err != nil {
		t.Errorf("good: got %v", err)
	}
	if err := Check(nil, "sqlite", filepath.Join(t.TempDir(), "none")); err == nil || !strings.Contains(err.Error(), "cannot be read: no such file") {
		t.Errorf("missing: got %v", err)
	}
}

func TestKeyIsFilledInEscaped(t *testing.T) {
	c := LDAP{Filter: "(|(a=%s)(b=%u)(c=%d)(d=100%%s))"}
	escape := func(s string) string { return "<" + s + ">" }
	for key, want := range map[string]string{
		"a@b@c": "(|(a=<a@b@c>)(b=<a@b>)(c=<c>)(d=100%s))",
		"bond":  "(|(a=<bond>)(b=<bond>)(c=<>)(d=100%s))",
		"%u":    "(|(a=<%u>)(b=<%u>)(c=<>)(d=100%s))",
	} {
		assert.Equal(t, c.Fill(key, escape), want, key)
	}
}
