package text

import (
	"errors"
	"strings"

	"zmailer/internal/mail/address"
)

// masqueradeLine reads "key: address", one a line (docs/headers.md).
func (s *scanner) masqueradeLine(line string) error {
	line = strings.TrimSpace(withoutComment(line))
	if line == "" {
		return nil
	}
	colon := indexOutside(line, ':')
	if colon < 0 {
		return s.bad(s.number, "no colon: want user@domain, @domain or @.domain, a colon and an address", nil)
	}
	key, err := MasqueradeKey(strings.TrimSpace(line[:colon]))
	if err != nil {
		return s.bad(s.number, "bad key", err)
	}
	text := strings.TrimSpace(line[colon+1:])
	if _, err := MasqueradeValue(text); err != nil {
		return s.bad(s.number, "bad address", err)
	}
	return s.each(Entry{Key: key, Text: text, Line: s.number})
}

// MasqueradeKey reads "user@dom", "@dom", or "@.dom" for what is below a domain.
func MasqueradeKey(s string) (string, error) {
	if below, ok := strings.CutPrefix(s, "@."); ok {
		d, err := Domain(below)
		return "@." + d, err
	}
	return addressKey(s)
}

// MasqueradeKeys returns the keys under which an address with a domain is looked up, the most
// special first.
func MasqueradeKeys(m address.Mailbox) ([]string, error) {
	domain, err := m.ASCIIDomain()
	if err != nil {
		return nil, err
	}
	keys := []string{strings.ToLower(m.Local) + "@" + domain, "@" + domain}
	if strings.HasPrefix(domain, "[") {
		return keys, nil
	}
	for {
		_, above, below := strings.Cut(domain, ".")
		if !below {
			return keys, nil
		}
		keys, domain = append(keys, "@."+above), above
	}
}

// MasqueradeValue reads the address that takes the place of another, with UserPart for
// the other's local part; "@dom" is short for UserPart and "@dom".
func MasqueradeValue(s string) (address.Mailbox, error) {
	if strings.HasPrefix(s, "@") && !strings.ContainsAny(s, ",:") {
		s = UserPart + s
	}
	m, err := address.Parse(s)
	if err == nil && (m.IsNull() || m.Domain == "") {
		err = errors.New("want an address with a domain")
	}
	return m, err
}
