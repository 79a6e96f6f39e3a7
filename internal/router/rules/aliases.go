package rules

import (
	"fmt"
	"strings"

	"zmailer/internal/table/text"
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
	a, err := parseAliasTable(s, text.Aliases)
	if err == nil {
		t.aliases = a
	}
	return err
}

// parseFQDNAliases reads "user@dom: value" and "@dom: value".
func (t *Tables) parseFQDNAliases(s source) error {
	a, err := parseAliasTable(s, text.FQDNAliases)
	if err == nil {
		t.fqdn = a
	}
	return err
}

// fqdnKey is the key of an address in fqdnaliases and in the chain of what is being
// expanded.
func fqdnKey(local, domain string) string { return strings.ToLower(local) + "@" + domain }

// parseAliasTable reads the entries of aliases or fqdnaliases.
func parseAliasTable(s source, kind text.Kind) (*aliasTable, error) {
	a := &aliasTable{uid: s.uid, values: map[string][]value{}}
	first := map[string]int{}
	err := text.Scan(kind, s.name, strings.NewReader(s.text), func(e text.Entry) error {
		if at, twice := first[e.Key]; twice {
			return s.bad(e.Line, fmt.Sprintf("%s stands in line %d already", e.Key, at), nil)
		}
		first[e.Key] = e.Line
		a.values[e.Key] = valuesOf(e.Values)
		return nil
	})
	return a, err
}
