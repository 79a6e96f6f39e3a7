package rules

import (
	"errors"
	"fmt"
	"strings"

	"zmailer/internal/address"
)

// aliasTable is the table aliases or fqdnaliases.
type aliasTable struct {
	uid    uint32             // privilege of its values
	values map[string][]value // by name, lower case
}

// lookup finds the values of a name.
func (a *aliasTable) lookup(name string) ([]value, bool) {
	if a == nil {
		return nil, false
	}
	v, ok := a.values[name]
	return v, ok
}

// parseAliases reads "name: value, value".
func (t *Tables) parseAliases(s source) error {
	a, err := parseAliasTable(s, aliasName)
	if err == nil {
		t.aliases = a
	}
	return err
}

// parseFQDNAliases reads "user@dom: value" and "@dom: value".
func (t *Tables) parseFQDNAliases(s source) error {
	a, err := parseAliasTable(s, fqdnName)
	if err == nil {
		t.fqdn = a
	}
	return err
}

// aliasName reads the name of a local alias.
func aliasName(s string) (string, error) {
	name, quoted := unquoted(s)
	switch {
	case name == "":
		return "", errors.New("no name before the colon")
	case !quoted && strings.ContainsRune(name, '@'):
		return "", fmt.Errorf("%q is an address: it belongs in fqdnaliases", name)
	case !quoted && strings.ContainsAny(name, " \t\""):
		return "", fmt.Errorf("blank or quote in the name %q; write it in quotes", name)
	}
	return strings.ToLower(name), nil
}

// fqdnName reads "user@dom" or "@dom".
func fqdnName(s string) (string, error) {
	if domain, all := strings.CutPrefix(s, "@"); all {
		d, err := domainOf(domain)
		return "@" + d, err
	}
	m, err := address.Parse(s)
	if err != nil {
		return "", err
	}
	if m.Domain == "" {
		return "", fmt.Errorf("%q has no domain: it belongs in aliases", s)
	}
	d, err := m.ASCIIDomain()
	return fqdnKey(m.Local, d), err
}

// fqdnKey is the key of an address in fqdnaliases and in the chain of what is being
// expanded.
func fqdnKey(local, domain string) string { return strings.ToLower(local) + "@" + domain }

// parseAliasTable reads entries that begin at column 1 and go on in lines that
// begin with a blank. Lines with # as their first character mean nothing.
func parseAliasTable(s source, nameOf func(string) (string, error)) (*aliasTable, error) {
	a := &aliasTable{uid: s.uid, values: map[string][]value{}}
	first := map[string]int{}
	var entry strings.Builder
	begin, number := 0, 0
	end := func() error {
		if begin == 0 {
			return nil
		}
		name, values, line, err := parseEntry(entry.String(), nameOf)
		if err != nil {
			return s.bad(begin+line, "bad alias", err)
		}
		if at, twice := first[name]; twice {
			return s.bad(begin, fmt.Sprintf("%s stands in line %d already", name, at), nil)
		}
		first[name] = begin
		a.values[name] = values
		entry.Reset()
		return nil
	}
	for line := range strings.Lines(s.text) {
		number++
		trimmed := strings.TrimSpace(line)
		comment := trimmed == "" || trimmed[0] == '#'
		switch {
		case comment && begin != 0:
			entry.WriteByte('\n') // keeps the count of lines
		case comment:
		case line[0] == ' ' || line[0] == '\t':
			if begin == 0 {
				return nil, s.bad(number, "begins with a blank, but there is no alias that it could continue", nil)
			}
			entry.WriteString(line)
		default:
			if err := end(); err != nil {
				return nil, err
			}
			begin = number
			entry.WriteString(line)
		}
	}
	return a, end()
}

// parseEntry reads "name: value, value" over several lines. line counts from 0 to
// what is wrong.
func parseEntry(text string, nameOf func(string) (string, error)) (name string, values []value, line int, err error) {
	colon := indexOutside(text, ':')
	if colon < 0 {
		return "", nil, 0, errors.New("no colon: want name: value")
	}
	name, err = nameOf(strings.TrimSpace(text[:colon]))
	if err != nil {
		return "", nil, 0, err
	}
	values, where, err := parseValues(text[colon+1:])
	if err == nil && len(values) == 0 {
		err = errors.New("no value; /dev/null drops the mail")
	}
	return name, values, strings.Count(text[:colon+1+where], "\n"), err
}
