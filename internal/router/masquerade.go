package router

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"zmailer/internal/address"
	"zmailer/internal/config"
	"zmailer/internal/router/rules"
	"zmailer/internal/table"
)

// masquerade says as who local senders appear to others: the sources of MASQUERADE, in
// their order. Keys are user@dom, @dom, and @.dom for what is below a domain; the most
// special one counts.
type masquerade struct {
	hostname string // domain of a sender without one
	sources  []masqueradeSource
}

// masqueradeSource gives the address for a key; ok is false if it surely has none.
type masqueradeSource func(ctx context.Context, key string) (to address.Mailbox, ok bool, err error)

// userPart stands in a value for the local part of the address that is replaced, as in
// fqdnaliases.
const userPart = "%1"

// defaultMasquerade is the file that is read if MASQUERADE names none; it may be missing.
const defaultMasquerade = "masquerade"

// newMasquerade opens the sources. Its errors are *config.Error.
func newMasquerade(c Config) (*masquerade, error) {
	m := &masquerade{hostname: c.Hostname}
	list := c.Masquerade
	if len(list) == 0 && c.Rules.Dir != "" {
		list = []string{defaultMasquerade}
	}
	for _, text := range list {
		s, err := table.Parse(text, c.Rules.Dir)
		if err != nil {
			return nil, err
		}
		var source masqueradeSource
		if s.Scheme == "file" {
			source, err = masqueradeFile(s.Rest, text != defaultMasquerade, c.Now, c.Log)
		} else {
			source, err = masqueradeTable(text, c)
		}
		if err != nil {
			return nil, err
		}
		m.sources = append(m.sources, source)
	}
	return m, nil
}

// masqueradeFile is a source in a text file, which is held in memory.
func masqueradeFile(path string, required bool, now func() time.Time, log *slog.Logger) (masqueradeSource, error) {
	f, err := rules.NewTextFile(path, required, parseMasquerade, now, log)
	if err != nil {
		return nil, err
	}
	return func(_ context.Context, key string) (address.Mailbox, bool, error) {
		m, ok := (*f.Current())[key]
		return m, ok, nil
	}, nil
}

// masqueradeTable is any other source.
func masqueradeTable(text string, c Config) (masqueradeSource, error) {
	t, err := table.Open(text, table.Options{
		Name: defaultMasquerade, Dir: c.Rules.Dir, Timeout: c.LookupTimeout, Keep: c.LookupKeep, Now: c.Now, Log: c.Log,
	})
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, key string) (address.Mailbox, bool, error) {
		v, ok, err := t.Lookup(ctx, key)
		if err != nil || !ok {
			return address.Mailbox{}, false, err
		}
		m, err := masqueradeValue(v.Text)
		if err != nil {
			return address.Mailbox{}, false, fmt.Errorf("%s: %s: %w", v.Where, key, err)
		}
		return m, true, nil
	}, nil
}

// parseMasquerade reads the text form: "key: address" a line.
func parseMasquerade(file, text string) (*map[string]address.Mailbox, error) {
	table, lines := map[string]address.Mailbox{}, map[string]int{}
	n := 0
	for line := range strings.Lines(text) {
		n++
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		bad := func(err error) error { return &config.Error{File: file, Line: n, Reason: err.Error()} }
		i := colonOutside(line)
		if i < 0 {
			return nil, bad(errors.New("no colon: want user@domain, @domain or @.domain, a colon and an address"))
		}
		key, err := masqueradeKey(strings.TrimSpace(line[:i]))
		if err != nil {
			return nil, bad(err)
		}
		to, err := masqueradeValue(strings.TrimSpace(line[i+1:]))
		if err != nil {
			return nil, bad(err)
		}
		if first := lines[key]; first > 0 {
			return nil, bad(fmt.Errorf("%s stands in line %d already", key, first))
		}
		table[key], lines[key] = to, n
	}
	return &table, nil
}

// colonOutside finds the first colon outside of quotes and brackets; -1: there is none.
func colonOutside(s string) int {
	quoted, bracket := false, false
	for i := 0; i < len(s); i++ {
		switch b := s[i]; {
		case b == '\\' && quoted:
			i++
		case b == '"':
			quoted = !quoted
		case quoted:
		case b == '[':
			bracket = true
		case b == ']':
			bracket = false
		case b == ':' && !bracket:
			return i
		}
	}
	return -1
}

// masqueradeKey brings a key into the form that is looked up.
func masqueradeKey(s string) (string, error) {
	prefix, domain := "@", ""
	switch {
	case strings.HasPrefix(s, "@."):
		prefix, domain = "@.", s[2:]
	case strings.HasPrefix(s, "@"):
		domain = s[1:]
	default:
		m, err := address.Parse(s)
		if err != nil {
			return "", err
		}
		if m.Domain == "" {
			return "", fmt.Errorf("%q has no domain", s)
		}
		keys, err := masqueradeKeys(m)
		if err != nil {
			return "", err
		}
		return keys[0], nil
	}
	d, err := address.Mailbox{Local: "x", Domain: strings.TrimSuffix(domain, ".")}.ASCIIDomain()
	if err == nil && d == "" {
		err = errors.New("domain is empty")
	}
	return prefix + d, err
}

// masqueradeValue reads the address that takes the place; "@dom" is short for "%1@dom".
func masqueradeValue(s string) (address.Mailbox, error) {
	if strings.HasPrefix(s, "@") && !strings.ContainsAny(s, ",:") {
		s = userPart + s
	}
	m, err := address.Parse(s)
	if err == nil && (m.IsNull() || m.Domain == "") {
		err = fmt.Errorf("%q: want an address with a domain", s)
	}
	return m, err
}

// of is the address that others are to see in place of m; ok is false if m stays.
func (q *masquerade) of(ctx context.Context, m address.Mailbox) (to address.Mailbox, ok bool, err error) {
	if len(q.sources) == 0 || m.IsNull() {
		return m, false, nil
	}
	if m.Domain == "" {
		m.Domain = q.hostname
	}
	keys, err := masqueradeKeys(m)
	if err != nil {
		return m, false, err
	}
	for _, key := range keys {
		for _, lookup := range q.sources {
			if to, ok, err = lookup(ctx, key); err != nil || ok {
				to.Local = strings.ReplaceAll(to.Local, userPart, m.Local)
				return to, ok && to != m, err
			}
		}
	}
	return m, false, nil
}

// masqueradeKeys are the keys that an address may stand under, the most special first.
func masqueradeKeys(m address.Mailbox) ([]string, error) {
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
