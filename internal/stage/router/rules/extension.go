package rules

import (
	"cmp"
	"slices"
	"strings"

	"zmailer/internal/mail/address"
	"zmailer/internal/table/text"
)

// Extend are the tables that pass tags on, Postfix's propagate_unmatched_extensions.
type Extend struct {
	Virtual bool // fqdnaliases, and keys user@domain of aliases
	Alias   bool // names of local aliases
}

// extension returns what m has behind the name that it was found under, with its separator:
// "+tag". A member that owner-LIST+member=domain names is no tag, and a catch-all (no name) has
// what it keeps in its own values.
func extension(m address.Mailbox, name string) string {
	if name == "" || len(name) >= len(m.Local) || hasPrefixFold(m.Local, ownerPrefix) {
		return ""
	}
	return m.Local[len(name):]
}

// extended returns the values of the key name@domain, with the extension at the end of each
// address. One that keeps the user part has it already. One that is the key's own with another
// tag (user: user+box) stays as it is: it would be found again, for ever.
func (t *Tables) extended(list []text.Value, name, domain, extension string) []text.Value {
	list = slices.Clone(list) // the table's
	for i := range list {
		v := &list[i]
		if v.Kind != text.ToAddress || strings.Contains(v.Mailbox.Local, text.UserPart) {
			continue
		}
		base, _, tagged := v.Mailbox.SplitTag(t.subaddress)
		if tagged && strings.EqualFold(base.Local, name) && strings.EqualFold(cmp.Or(base.Domain, t.hostname), domain) {
			continue
		}
		v.Mailbox.Local += extension
	}
	return list
}
