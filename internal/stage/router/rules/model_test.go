package rules

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"zmailer/internal/mail/address"
	"zmailer/internal/run/assert"
	"zmailer/internal/table/text"
)

var (
	modelTime = flag.Duration("model", 500*time.Millisecond, "how long random configurations are compared with the model")
	modelSeed = flag.Uint64("model-seed", 0, "the configuration to begin with; 0: by the clock")
)

// world is a random configuration of domain classes and aliases, as the model sees it: domain and
// what is known in each, written anew from docs/virtual-domains.md and ADDRESS_CLASS_README.
type world struct {
	domains   map[string]Class
	fqdn      map[string][]string // user@domain or @domain
	aliases   map[string][]string // user, user@domain or @domain
	users     map[string]bool
	mailboxes map[string]bool
	relayed   map[string]bool
	relays    bool // there is a table of the relayed recipients, which may be empty
	// renamed is set when an alias leads to its own name with another tag, where Postfix finds no end.
	renamed bool
}

var (
	worldDomains = []string{"l1.example", "l2.example", "a1.example", "a2.example", "v1.example", "v2.example", "r1.example", "r2.example", "d1.example"}
	worldLocals  = []string{"ann", "bob", "eve", "ann+x", "zoe"}
)

// newWorld makes a configuration; suffix keeps its domains apart from those of another one.
func newWorld(r *rand.Rand, suffix string) *world {
	worldDomains := slices.Clone(worldDomains)
	for i := range worldDomains {
		worldDomains[i] += suffix
	}
	w := &world{domains: map[string]Class{"mx.example.org": ClassLocal}, fqdn: map[string][]string{}, aliases: map[string][]string{},
		users: map[string]bool{}, mailboxes: map[string]bool{}, relayed: map[string]bool{}}
	for _, d := range worldDomains {
		w.domains[d] = map[byte]Class{'l': ClassLocal, 'a': ClassVirtualAlias, 'v': ClassVirtualMailbox, 'r': ClassRelay, 'd': ClassDefault}[d[0]]
	}
	pick := func(list []string) string { return list[r.IntN(len(list))] }
	any := func() string { return pick(worldLocals) + "@" + pick(worldDomains) }
	values := func(self string) (list []string) {
		for range 1 + r.IntN(2) {
			list = append(list, any())
		}
		if r.IntN(5) == 0 && self[0] != '@' {
			list = append(list, self)
		}
		return list
	}
	for range r.IntN(8) {
		key := any()
		w.fqdn[key] = values(key)
	}
	if r.IntN(3) == 0 {
		key := "@" + pick(worldDomains)
		w.fqdn[key] = values(key)
	}
	for range r.IntN(6) {
		key := pick(worldLocals) + "@" + pick(worldDomains[2:6])
		switch r.IntN(6) {
		case 0:
			key = key[strings.IndexByte(key, '@'):]
		case 1:
			key = key[:strings.IndexByte(key, '@')]
		}
		w.aliases[key] = values(key)
	}
	for _, u := range []string{"ann", "bob", "eve"} {
		if r.IntN(2) == 0 {
			w.users[u] = true
		}
	}
	for range r.IntN(7) {
		key := pick(worldLocals) + "@" + pick(worldDomains[4:6])
		if r.IntN(6) == 0 {
			key = key[strings.IndexByte(key, '@'):]
		}
		w.mailboxes[key] = true
	}
	if w.relays = r.IntN(3) > 0; w.relays {
		for range r.IntN(6) {
			key := pick(worldLocals) + "@" + pick(worldDomains[6:8])
			if r.IntN(6) == 0 {
				key = key[strings.IndexByte(key, '@'):]
			}
			w.relayed[key] = true
		}
	}
	return w
}

func (w *world) class(c Class) string {
	var list []string
	for d, of := range w.domains {
		if of == c && d != "mx.example.org" {
			list = append(list, d+"\n")
		}
	}
	slices.Sort(list)
	return strings.Join(list, "")
}

// files returns the configuration in our files.
func (w *world) files() map[string]string {
	table := func(of map[string][]string) string {
		var b strings.Builder
		for _, key := range slices.Sorted(maps.Keys(of)) {
			fmt.Fprintf(&b, "%s: %s\n", key, strings.Join(of[key], ", "))
		}
		return b.String()
	}
	list := func(of map[string]bool, end string) string {
		return strings.Join(append(slices.Sorted(maps.Keys(of)), ""), end)
	}
	var boxes strings.Builder
	for _, key := range slices.Sorted(maps.Keys(w.mailboxes)) {
		fmt.Fprintf(&boxes, "%s %s/\n", key, strings.Trim(key, "@"))
	}
	ids := ""
	for _, d := range strings.Fields(w.class(ClassVirtualMailbox)) {
		ids += "@" + d + " 5000\n"
	}
	files := map[string]string{
		"users": list(w.users, "\n"), "fqdnaliases": table(w.fqdn), "aliases": table(w.aliases), "localnames": w.class(ClassLocal),
		string(text.VirtualAliasDomains): w.class(ClassVirtualAlias), string(text.VirtualMailboxDomains): w.class(ClassVirtualMailbox),
		string(text.VirtualMailboxMaps): boxes.String(), string(text.RelayDomains): w.class(ClassRelay),
		string(text.VirtualUIDMaps): ids, string(text.VirtualGIDMaps): ids,
	}
	if w.relays {
		files[string(text.RelayRecipientMaps)] = list(w.relayed, "\n")
	}
	return files
}

// place is where a message to an address ends: "user", "virtual", "relay" or "away" and the
// address there.
type places map[string]bool

// errCycle ends an expansion that comes back to an address through another one.
var errCycle = errors.New("addresses lead to one another")

// resolve adds the places of an address. Those of nobody are none.
func (w *world) resolve(to string, path []string, out places) error {
	local, domain, ok := strings.Cut(to, "@")
	if !ok {
		domain = "mx.example.org"
		to += "@" + domain
	}
	base, _, _ := strings.Cut(local, "+")
	// extend gives the values of a virtual alias the tag that its key lacks
	// (propagate_unmatched_extensions).
	extend := func(key string, list []string) (out []string) {
		name, _, _ := strings.Cut(key, "@")
		if name == "" || name == local {
			return list
		}
		for _, v := range list {
			to, at, _ := strings.Cut(v, "@")
			if user, _, tagged := strings.Cut(to, "+"); tagged && user+"@"+at == key {
				w.renamed = true
				out = append(out, v)
				continue
			}
			out = append(out, to+local[len(name):]+"@"+at)
		}
		return out
	}
	// follow expands the values of an address, unless it leads to itself.
	follow := func(step string, list []string) (bool, error) {
		switch i := slices.Index(path, step); {
		case i >= 0 && i == len(path)-1:
			return false, nil
		case i >= 0 || len(path) >= MaxDepth:
			return false, errCycle
		}
		for _, v := range list {
			if err := w.resolve(v, append(slices.Clip(path), step), out); err != nil {
				return true, err
			}
		}
		return true, nil
	}
	for _, key := range []string{to, base + "@" + domain, "@" + domain} {
		if list, ok := w.fqdn[key]; ok {
			step := to
			if key[0] != '@' {
				step = key // with whatever tag
			}
			if done, err := follow("fqdn "+step, extend(key, list)); done || err != nil {
				return err
			}
			break
		}
	}
	class := w.domains[domain]
	names := []string{local, base, ""}
	switch class {
	case ClassDefault:
		out["smtp "+to] = true
		return nil
	case ClassRelay:
		for _, name := range names {
			if !w.relays || w.relayed[name+"@"+domain] {
				out["smtp "+to] = true
				return nil
			}
		}
		return nil
	case ClassLocal:
		for _, name := range names[:2] {
			if list, ok := w.aliases[name]; ok {
				if done, err := follow("aliases "+name, list); done || err != nil {
					return err
				}
			}
			if w.users[name] {
				out["local "+name+"@"+domain] = true
				return nil
			}
		}
		return nil
	}
	for _, name := range names {
		key := name + "@" + domain
		if list, ok := w.aliases[key]; ok {
			if done, err := follow("aliases "+key, extend(key, list)); done || err != nil {
				return err
			}
		}
		if class == ClassVirtualMailbox && w.mailboxes[key] {
			out["virtual "+key] = true
			return nil
		}
	}
	return nil
}

// ours returns the places that our tables have for an address.
func ours(t *testing.T, c *conf, to string) places {
	t.Helper()
	list := assert.Get(collect(c.Tables(), assert.Get(address.Parse(to))(t), false))(t)
	out := places{}
	for _, x := range list {
		switch x.Channel {
		case Error:
		case Local:
			out["local "+x.Host] = true
		case Virtual:
			box, _, _ := strings.Cut(x.Host, ";")
			out["virtual "+assert.Get(address.DecodeXText(box))(t)] = true
		default:
			out[x.Channel+" "+x.User] = true
		}
	}
	return out
}

func worldAddresses(suffix string) (all []string) {
	for _, d := range worldDomains {
		d += suffix
		for _, l := range append([]string{"nobody", "nobody+y", "bob+y"}, worldLocals...) {
			all = append(all, l+"@"+d)
		}
	}
	return all
}

// In random configurations of domain classes and aliases each address goes where the model says,
// and the answer at RCPT is whether that is anywhere: what is accepted has a place, and what is
// refused has none.
func TestRecipientsFollowAModel(t *testing.T) {
	seed := cmp.Or(*modelSeed, uint64(time.Now().UnixNano()))
	compared := 0
	for end := time.Now().Add(*modelTime); compared == 0 || time.Now().Before(end); seed++ {
		w := newWorld(rand.New(rand.NewPCG(seed, 1)), "")
		c := newConf(t, w.files())
		c.Rules = withTags(t, c)
		for _, to := range worldAddresses("") {
			got := ours(t, c, to)
			m := assert.Get(address.Parse(to))(t)
			at, err := c.Tables().Verify(context.Background(), m)
			assert.Must(t, err)
			if (at.Channel != Error) != (len(got) > 0) {
				t.Errorf("%s: at RCPT %s!%s, routed to %v", to, at.Channel, at.Host, slices.Sorted(maps.Keys(got)))
			}
			want := places{}
			if w.resolve(to, nil, want) != nil {
				continue // whoever loops is told so; the other places depend on the way
			}
			if compared++; !maps.Equal(got, want) {
				t.Errorf("%s: got %v, the model has %v", to, slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(want)))
			}
		}
		if t.Failed() {
			for name, text := range w.files() {
				t.Logf("%s:\n%s", name, text)
			}
			t.Fatalf("repeat with -args -model-seed %d", seed)
		}
	}
	t.Logf("%d addresses compared", compared)
}

func withTags(t *testing.T, c *conf) *Rules {
	k := c.config()
	k.Subaddress, k.Extend = "+", Extend{Virtual: true}
	return assert.Get(New(k))(t)
}
