package rules

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"log/slog"
	"slices"
	"strconv"
	"strings"

	"zmailer/internal/mail/address"
	"zmailer/internal/run/config"
	"zmailer/internal/table"
	"zmailer/internal/table/text"
)

// Tables are the rules at one moment. It may be used by many goroutines and does
// not change, but for users, lists and sources that are asked, which are looked up.
type Tables struct {
	hostname   string // A-labels, lower case
	postmaster address.Mailbox
	passwd     Users
	rolls      *rolls
	forwards   *forwards
	subaddress string
	extend     Extend
	listDir    string // "": there is no configuration
	lists      string // listDir if it is there
	log        *slog.Logger
	seeds      [2]maphash.Seed

	classes Classes
	reverse func(m address.Mailbox) (address.Mailbox, bool, error)

	local, routes, aliases, fqdn []layer
	// Of domain classes; without a layer the setting is not there, and nothing is asked.
	aliasDomains, mailboxDomains, mailboxes, uids, gids, relayDomains, relayRcpts []layer

	logins *logins // nil: every user of the system
}

// layer is one source of a table: a text file, which is in memory, or something that
// is asked.
type layer struct {
	mem    *memory // nil: ext or static
	ext    *external
	static *found // for every key
}

type memory struct {
	file   string
	rights rights
	// entries by key. Of routes, below holds the keys ".dom", by the domain.
	entries map[string]entry
	below   map[string]entry
	// addresses: of aliases, some key is that of a virtual domain.
	addresses bool
}

// entry is what a table has for a key.
type entry struct {
	key    string
	values []text.Value // of an alias
	route  text.Route
	store  text.Store // of a virtual mailbox or a domain
	id     uint32     // a uid or gid
	line   int
}

// found is an entry with its rights and its place.
type found struct {
	entry
	rights rights
	where  where
}

// at returns a key that was found in a file, or another place that has a name.
func at(key, file string) found { return found{entry: entry{key: key}, where: where{file: file}} }

// where is a place in a table or list; the zero value: none.
type where struct {
	file string
	line int // 0: file says it all
}

func (w where) String() string {
	if w.line == 0 {
		return w.file
	}
	return w.file + ":" + strconv.Itoa(w.line)
}

type external struct {
	table.Table
	name string // as in the setting
	kind text.Kind
}

// layersOf returns where a kind of table is kept.
func (t *Tables) layersOf(kind text.Kind) *[]layer {
	switch kind {
	case text.LocalNames:
		return &t.local
	case text.Routes:
		return &t.routes
	case text.Aliases:
		return &t.aliases
	case text.FQDNAliases:
		return &t.fqdn
	case text.VirtualAliasDomains:
		return &t.aliasDomains
	case text.VirtualMailboxDomains:
		return &t.mailboxDomains
	case text.VirtualMailboxMaps:
		return &t.mailboxes
	case text.VirtualUIDMaps:
		return &t.uids
	case text.VirtualGIDMaps:
		return &t.gids
	case text.RelayDomains:
		return &t.relayDomains
	}
	return &t.relayRcpts
}

// parseLayer reads a text table as the layer i of a kind.
func (t *Tables) parseLayer(kind text.Kind, i int, s source) error {
	m := &memory{file: s.name, rights: s.rights, entries: map[string]entry{}, below: map[string]entry{}}
	m.rights.admin = true
	err := text.Scan(kind, s.name, strings.NewReader(s.text), func(e text.Entry) error {
		v := entry{key: e.Key, values: e.Values, route: e.Route, store: e.Store, id: e.ID, line: e.Line}
		in, key := m.entries, e.Key
		if kind == text.Routes && len(key) > 1 && key[0] == '.' && key != text.ReportRoute {
			in, key = m.below, key[1:]
		}
		if first, twice := in[key]; twice {
			return config.Duplicate(s.name, e.Line, e.Key, first.line)
		}
		in[key] = v
		m.addresses = m.addresses || kind == text.Aliases && key[0] != '"' && strings.Contains(key, "@")
		if uid := max(v.store.UID, v.id); uid != 0 && uid < t.classes.MinimumUID && kind != text.VirtualGIDMaps {
			return s.bad(e.Line, fmt.Sprintf("uid %d is below VIRTUALMINIMUMUID=%d", uid, t.classes.MinimumUID), nil)
		}
		return nil
	})
	if bad := (*config.Error)(nil); err != nil && !errors.As(err, &bad) {
		err = &config.Error{File: s.name, Reason: "cannot be read", Err: err}
	}
	if errs, _ := config.Sort(err); errs != nil {
		return err
	}
	layers := t.layersOf(kind)
	*layers = slices.Clone(*layers) // older Tables share it
	(*layers)[i] = layer{mem: m}
	return err // warnings
}

func parseEntry(kind text.Kind, s string) (e entry, err error) {
	switch kind {
	case text.Routes:
		e.route, err = text.ParseRoute(s)
	case text.Aliases, text.FQDNAliases:
		e.values, _, err = text.ParseValues(s)
		if err == nil && len(e.values) == 0 {
			err = errors.New("no value; /dev/null drops the mail")
		}
	default:
		var c text.Entry
		c, err = text.ParseClass(kind, s)
		e.store, e.id = c.Store, c.ID
	}
	return e, err
}

// find looks a key up in the layers of a kind; the first that has it counts.
func (t *Tables) find(ls lookups, kind text.Kind, key string) (found, bool, error) {
	for _, l := range *t.layersOf(kind) {
		if l.static != nil {
			return *l.static, true, nil
		}
		if l.mem != nil {
			if e, ok := l.mem.entries[key]; ok {
				return l.mem.found(e), true, nil
			}
			continue
		}
		if f, ok, err := l.ext.find(ls, key); ok || err != nil {
			return f, ok, err
		}
	}
	return found{}, false, nil
}

// below looks the key ".domain" up in routes.
func (t *Tables) below(ls lookups, domain string) (found, bool, error) {
	for _, l := range t.routes {
		if l.mem != nil {
			if e, ok := l.mem.below[domain]; ok {
				return l.mem.found(e), true, nil
			}
			continue
		}
		if f, ok, err := l.ext.find(ls, "."+domain); ok || err != nil {
			return f, ok, err
		}
	}
	return found{}, false, nil
}

func (m *memory) found(e entry) found {
	return found{entry: e, rights: m.rights, where: where{m.file, e.line}}
}

// find asks the source. What it has but cannot be parsed is trouble as well: the key is
// known, and must not get the answer of an unknown one.
func (e *external) find(ls lookups, key string) (found, bool, error) {
	v, ok, err := ls.ask(e, key)
	if err != nil {
		return found{}, false, &Trouble{Why: string(e.kind), Err: fmt.Errorf("%s of %q: %w", e.kind, key, err)}
	}
	if !ok {
		return found{}, false, nil
	}
	at := v.Where
	if at == "" {
		at = e.name
	}
	f := found{where: where{file: at}, rights: rights{uid: v.UID, admin: true}}
	if v.UID == Nobody {
		f.rights.why = at + " acts as nobody"
	}
	if f.entry, err = parseEntry(e.kind, v.Text); err != nil {
		return found{}, false, &Trouble{Why: string(e.kind), Err: fmt.Errorf("%s: %s: bad value %.200q: %w", at, key, v.Text, err)}
	}
	f.key = key
	return f, true, nil
}

// has reports whether any layer of a kind may hold a key.
func has(layers []layer) bool {
	for _, l := range layers {
		if l.ext != nil || len(l.mem.entries)+len(l.mem.below) > 0 {
			return true
		}
	}
	return false
}

// Hostname is this machine's domain in lower-case A-labels.
func (t *Tables) Hostname() string { return t.hostname }

// IsLocal reports whether a mailbox is in a domain that is ours, local or virtual; a bare name
// is. Its error is a *Trouble.
func (t *Tables) IsLocal(ctx context.Context, m address.Mailbox) (bool, error) {
	return t.isOurs(lookups{ctx: ctx}, m)
}

func (t *Tables) isOurs(ls lookups, m address.Mailbox) (bool, error) {
	if m.Domain == "" {
		return true, nil
	}
	d, err := m.ASCIIDomain()
	if err != nil {
		return false, nil
	}
	class, _, err := t.classOf(ls, d)
	return class != ClassDefault && class != ClassRelay, err
}

// isLocal reports whether a domain is of the class local, and where it was found.
func (t *Tables) isLocal(ls lookups, domain string) (found, bool, error) {
	if domain == t.hostname {
		return at(domain, "HOSTNAME"), true, nil
	}
	return t.find(ls, text.LocalNames, domain)
}

// routeOf finds the route of a domain: the exact key, the longest key ".dom", the
// default. The most specific key counts, whichever source has it.
func (t *Tables) routeOf(ls lookups, domain string, report bool) (found, bool, error) {
	if !has(t.routes) {
		return found{}, false, nil
	}
	if f, ok, err := t.find(ls, text.Routes, domain); ok || err != nil {
		return f, ok, err
	}
	if domain[0] != '[' {
		for d, more := domain, true; more; _, d, more = strings.Cut(d, ".") {
			if f, ok, err := t.below(ls, d); ok || err != nil {
				return f, ok, err
			}
		}
	}
	if report {
		if f, ok, err := t.find(ls, text.Routes, text.ReportRoute); ok || err != nil {
			return f, ok, err
		}
	}
	return t.find(ls, text.Routes, text.DefaultRoute)
}
