package policy

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"zmailer/internal/mail/address"
)

// maySend reports whether a user may send as an address: SENDERLOGIN lists the users of the
// address, of its domain, or of .domain for a domain above it. The first of these keys that
// is found decides. An error means that a table cannot be asked now.
func (p *Policy) maySend(ctx context.Context, user string, from address.Mailbox) (bool, error) {
	for _, key := range senderKeys(from) {
		list, ok, err := p.senders.lookup(ctx, key)
		if err != nil {
			return false, err
		}
		if ok {
			return slices.ContainsFunc(list, func(u string) bool { return u == "*" || strings.EqualFold(u, user) }), nil
		}
	}
	return false, nil
}

// senderKeys returns the keys of an address: itself, its domain, .domain for the domain and each
// above it; none for a domain that cannot be looked up.
func senderKeys(from address.Mailbox) []string {
	d, err := from.ASCIIDomain()
	if err != nil {
		return nil
	}
	keys := []string{strings.ToLower(from.Local) + "@" + d, d}
	for rest, more := d, d != ""; more; _, rest, more = strings.Cut(rest, ".") {
		keys = append(keys, "."+rest)
	}
	return keys
}

// parseSenders reads lines "ADDRESS USER ...".
func parseSenders(name string, text []byte) (words, error) {
	return parseWordLines(name, text, func(f []string) (string, error) {
		key, err := senderKey(strings.TrimSuffix(f[0], ":"))
		if err == nil && len(f) == 1 {
			err = errors.New("no user follows " + f[0])
		}
		return key, err
	})
}

// senderKey returns an address, @domain, domain or .domain as it is looked up.
func senderKey(s string) (string, error) {
	local, domain, at := strings.Cut(s, "@")
	if at && local != "" {
		m, err := address.Parse(s)
		if err != nil {
			return "", err
		}
		local, domain = strings.ToLower(m.Local)+"@", m.Domain
	} else if !at {
		local, domain = "", s
		if rest, below := strings.CutPrefix(s, "."); below {
			local, domain = ".", rest
		}
	}
	d, err := (address.Mailbox{Local: "x", Domain: domain}).ASCIIDomain()
	if err != nil || d == "" {
		return "", fmt.Errorf("%q is neither an address nor a domain", s)
	}
	return local + d, nil
}
