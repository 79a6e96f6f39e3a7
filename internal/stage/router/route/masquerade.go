package route

import (
	"bytes"
	"errors"
	"fmt"
	"strings"

	"zmailer/internal/mail/address"
	"zmailer/internal/run/config"
	"zmailer/internal/table"
	"zmailer/internal/table/text"
)

// masquerade has the addresses that others see instead of local ones: the sources of MASQUERADE, in
// their order. Keys are user@dom, @dom, and @.dom for what is below a domain; the most
// special one counts.
type masquerade struct {
	hostname string // domain of a sender without one
	sources  []masqueradeSource
	tables   []table.Table // those of the sources that must be closed
}

// masqueradeSource gives the address for a key; ok is false if it surely has none.
type masqueradeSource func(a maskLookup, key string) (to address.Mailbox, ok bool, err error)

// defaultMasquerade is the file that is read if MASQUERADE names none; it may be missing.
const defaultMasquerade = "masquerade"

// newMasquerade opens the sources. Its errors are *config.Error.
func newMasquerade(c Config) (*masquerade, error) {
	q := &masquerade{hostname: c.Hostname}
	list := c.Masquerade
	if len(list) == 0 && c.Rules.Dir != "" {
		list = []string{defaultMasquerade}
	}
	for _, name := range list {
		s, err := table.Parse(name, c.Rules.Dir)
		if err != nil {
			return nil, errors.Join(err, q.close())
		}
		var source masqueradeSource
		if s.Scheme == "file" {
			source, err = masqueradeFile(s.Rest, name != defaultMasquerade, c)
		} else {
			source, err = q.table(name, c)
		}
		if err != nil {
			return nil, errors.Join(err, q.close())
		}
		q.sources = append(q.sources, source)
	}
	return q, nil
}

// masqueradeFile returns a source in a text file, which is held in memory.
func masqueradeFile(path string, required bool, c Config) (masqueradeSource, error) {
	f, err := config.OpenFile(path, parseMasquerade, config.FileOptions{Required: required, Keeper: c.Keeper, Now: c.Now, Log: c.Log})
	if err != nil {
		return nil, err
	}
	return func(_ maskLookup, key string) (address.Mailbox, bool, error) {
		m, ok := f.Current()[key]
		return m, ok, nil
	}, nil
}

// close ends the connections and children of the sources; q may be nil.
func (q *masquerade) close() (err error) {
	if q == nil {
		return nil
	}
	for _, t := range q.tables {
		err = errors.Join(err, t.Close())
	}
	return err
}

func (q *masquerade) table(source string, c Config) (masqueradeSource, error) {
	t, err := table.Open(source, table.Options{
		Name: string(text.Masquerade), Dir: c.Rules.Dir, Timeout: c.LookupTimeout, Keep: c.LookupKeep, Parallel: c.LookupParallel, Keeper: c.Keeper, Now: c.Now, Log: c.Log,
	})
	if err != nil {
		return nil, err
	}
	q.tables = append(q.tables, t)
	return func(a maskLookup, key string) (address.Mailbox, bool, error) {
		v, ok, err := a.ask(t, key)
		if err != nil || !ok {
			return address.Mailbox{}, false, err
		}
		m, err := text.MasqueradeValue(v.Text)
		if err != nil {
			return address.Mailbox{}, false, fmt.Errorf("%s: %s: %w", v.Where, key, err)
		}
		return m, true, nil
	}, nil
}

// parseMasquerade reads the text form, which has each key once.
func parseMasquerade(file string, content []byte) (map[string]address.Mailbox, error) {
	entries, lines := map[string]address.Mailbox{}, map[string]int{}
	err := text.Scan(text.Masquerade, file, bytes.NewReader(content), func(e text.Entry) error {
		if first := lines[e.Key]; first > 0 {
			return config.Duplicate(file, e.Line, e.Key, first)
		}
		m, err := text.MasqueradeValue(e.Text)
		entries[e.Key], lines[e.Key] = m, e.Line
		return err
	})
	return entries, err
}

// of returns the address that others are to see in place of m; ok is false if m stays.
func (q *masquerade) of(a maskLookup, m address.Mailbox) (to address.Mailbox, ok bool, err error) {
	if len(q.sources) == 0 || m.IsNull() {
		return m, false, nil
	}
	if m.Domain == "" {
		m.Domain = q.hostname
	}
	keys, err := text.MasqueradeKeys(m)
	if err != nil {
		return m, false, err
	}
	for _, key := range keys {
		for _, lookup := range q.sources {
			if to, ok, err = lookup(a, key); err != nil || ok {
				to.Local = strings.ReplaceAll(to.Local, text.UserPart, m.Local)
				return to, ok && to != m, err
			}
		}
	}
	return m, false, nil
}
