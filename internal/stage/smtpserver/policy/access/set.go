package access

import (
	"bytes"
	"context"
	"errors"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"zmailer/internal/mail/address"
	"zmailer/internal/run/config"
	"zmailer/internal/run/logging"
	"zmailer/internal/table"
	"zmailer/internal/wire/policyservice"
)

// set is the meaning of a value: its members, a list, or a table that is asked.
type set interface {
	client(context.Context, netip.Addr) (answer, error)
	host(context.Context, string) (answer, error)
	word(context.Context, string) (answer, error)
	mailbox(ctx context.Context, m address.Mailbox, local bool) (answer, error)
	// names reports whether an address or its domain is in the set: not by *, and not by a
	// local part in any domain.
	names(ctx context.Context, m address.Mailbox) (answer, error)
}

func (m *members) client(_ context.Context, a netip.Addr) (answer, error) {
	if !a.IsValid() {
		return is(m.any || m.none)
	}
	a = a.Unmap().WithZone("")
	return is(m.any || slices.ContainsFunc(m.nets, func(n netip.Prefix) bool { return n.Contains(a) }) || m.like(a.String))
}

func (m *members) host(_ context.Context, name string) (answer, error) {
	if name == "" {
		return no, nil
	}
	return is(m.any || m.domain(strings.ToLower(strings.TrimSuffix(name, "."))) || m.like(func() string { return name }))
}

// like reports whether an expression matches a text, which is made only if there is one.
func (m *members) like(text func() string) bool {
	if len(m.exprs) == 0 {
		return false
	}
	t := text()
	return slices.ContainsFunc(m.exprs, func(e *regexp.Regexp) bool { return e.MatchString(t) })
}

func (m *members) word(_ context.Context, w string) (answer, error) {
	if w == "" {
		return is(m.none)
	}
	_, ok := m.exact[strings.ToLower(w)]
	return is(ok || m.any || m.like(func() string { return w }))
}

func (m *members) mailbox(_ context.Context, box address.Mailbox, local bool) (answer, error) {
	if box.IsNull() {
		return is(m.any || m.none || m.like(func() string { return "<>" }))
	}
	if m.any || m.local && local || m.like(func() string { return mailboxKey(box) }) {
		return yes, nil
	}
	if _, ok := m.parts[strings.ToLower(box.Local)]; ok {
		return yes, nil
	}
	return m.names(context.Background(), box)
}

func (m *members) names(_ context.Context, box address.Mailbox) (answer, error) {
	key := mailboxKey(box)
	if _, ok := m.exact[key]; ok {
		return yes, nil
	}
	return is(m.domain(key[strings.LastIndexByte(key, '@')+1:]))
}

func (m *members) domain(d string) bool {
	if _, ok := m.exact[d]; ok {
		return true
	}
	for more := len(m.below) > 0; more; _, d, more = strings.Cut(d, ".") {
		if _, ok := m.below[d]; ok {
			return true
		}
	}
	return false
}

// isSource reports whether a value names a list or a table.
func isSource(v string) bool {
	scheme, _, ok := strings.Cut(v, ":")
	return ok && table.IsScheme(scheme) // no scheme begins with the / of an expression
}

// list is a file with a value a line.
type list struct{ *config.File[*members] }

func (l list) client(ctx context.Context, a netip.Addr) (answer, error) {
	return l.Current().client(ctx, a)
}
func (l list) host(ctx context.Context, s string) (answer, error) { return l.Current().host(ctx, s) }
func (l list) word(ctx context.Context, s string) (answer, error) { return l.Current().word(ctx, s) }
func (l list) mailbox(ctx context.Context, m address.Mailbox, local bool) (answer, error) {
	return l.Current().mailbox(ctx, m, local)
}
func (l list) names(ctx context.Context, m address.Mailbox) (answer, error) {
	return l.Current().names(ctx, m)
}

// parseList reads a value a line; # begins a comment.
func parseList(key string) func(name string, text []byte) (*members, error) {
	return func(name string, text []byte) (*members, error) {
		m := newMembers(key)
		number := 0
		var wrong config.Mistakes
		for line := range bytes.Lines(text) {
			number++
			word := strings.TrimSpace(string(line))
			if !strings.HasPrefix(word, "/") {
				word, _, _ = strings.Cut(word, "#")
				word = strings.TrimSpace(word)
			}
			if word == "" {
				continue
			}
			if err := m.add(word); err != nil && wrong.Add(&config.Error{File: name, Line: number, Reason: err.Error()}) {
				break
			}
		}
		return m, wrong.Err()
	}
}

// asked is a table that is asked for keys; that it has one is all that counts.
type asked struct{ table.Table }

func (t asked) any(ctx context.Context, keys ...string) (answer, error) {
	_, ok, err := t.first(ctx, keys)
	return when(true, ok), err
}

// first returns the value of the first key that the table has. The keys behind the first one are
// parts of it.
func (t asked) first(ctx context.Context, keys []string) (v table.Value, ok bool, err error) {
	for i, key := range keys {
		if i == 1 {
			ctx = table.Part(ctx)
		}
		if v, ok, err = t.Lookup(ctx, key); ok || err != nil {
			break
		}
	}
	return v, ok, err
}

func (t asked) client(ctx context.Context, a netip.Addr) (answer, error) {
	if !a.IsValid() {
		return no, nil
	}
	return t.any(ctx, a.Unmap().WithZone("").String())
}

func (t asked) host(ctx context.Context, name string) (answer, error) {
	if name == "" {
		return no, nil
	}
	return t.any(ctx, parents(strings.ToLower(strings.TrimSuffix(name, ".")))...)
}

func (t asked) word(ctx context.Context, w string) (answer, error) {
	if w == "" {
		return no, nil
	}
	return t.any(ctx, w)
}

func (t asked) mailbox(ctx context.Context, m address.Mailbox, _ bool) (answer, error) {
	if m.IsNull() {
		return no, nil
	}
	key := mailboxKey(m)
	return t.any(ctx, append([]string{key}, parents(key[strings.LastIndexByte(key, '@')+1:])...)...)
}

func (t asked) names(ctx context.Context, m address.Mailbox) (answer, error) {
	return t.mailbox(ctx, m, false)
}

// parents returns the keys of a domain: itself, then .domain for itself and all above it.
func parents(d string) []string {
	keys := []string{d}
	for more := d != ""; more; _, d, more = strings.Cut(d, ".") {
		keys = append(keys, "."+d)
	}
	return keys
}

// sources are the lists and tables that were opened, by what names them. They stay open
// when the rules are read again.
type sources struct {
	o       Options
	instead func(source, key string) (set, error) // opens a source in tests; nil: set does

	mu       sync.Mutex
	open     map[string]set
	services map[string]*service
}

func (s *sources) set(source, key string) (set, error) {
	if s.instead != nil {
		return s.instead(source, key)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	id := key + " " + source
	if known := s.open[id]; known != nil {
		return known, nil
	}
	from, err := table.Parse(source, s.o.Dir)
	if err != nil {
		return nil, err
	}
	var opened set
	if from.Scheme == "file" {
		f, err := config.OpenFile(from.Rest, parseList(key), config.FileOptions{Required: true, Keeper: s.o.Keeper, Now: s.o.Now, Log: s.o.Log})
		if err != nil {
			return nil, err
		}
		opened = list{f}
	} else {
		o := s.o.Source
		o.Name, o.Dir, o.Now, o.Log = "access", s.o.Dir, s.o.Now, s.o.Log
		t, err := table.Open(source, o)
		if err != nil {
			return nil, err
		}
		opened = asked{t}
	}
	s.open[id] = opened
	return opened, nil
}

// close ends the connections and programs of the tables.
func (s *sources) close() (err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, opened := range s.open {
		if t, ok := opened.(asked); ok {
			err = errors.Join(err, t.Close())
		}
	}
	s.open = map[string]set{}
	for _, one := range s.services {
		one.Close()
	}
	return err
}

// service is a policy service as all rules share it.
type service struct {
	*policyservice.Client
	trouble logging.Trouble
	outage  *config.Outage
}

// service returns the policy service at an address. It stays when the rules are read again.
func (s *sources) service(at policyservice.Endpoint, timeout time.Duration) *service {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := at.Network + " " + at.Addr + " " + timeout.String()
	one := s.services[key]
	if one == nil {
		one = &service{Client: policyservice.New(at, timeout), outage: config.NewOutage(s.o.Keeper,
			config.Backend{Name: "policy:" + at.Addr, Remedy: "start the policy service, or take it out of access and reload"})}
		if s.services == nil {
			s.services = map[string]*service{}
		}
		s.services[key] = one
	}
	return one
}
