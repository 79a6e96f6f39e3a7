package rules

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"zmailer/internal/mail/address"
	"zmailer/internal/run/config"
	"zmailer/internal/table/text"
	"zmailer/internal/workspec"
)

// Class is how the recipients of a domain are found, as Postfix's ADDRESS_CLASS_README has it.
type Class string

// Classes. A domain is in the first of them that has it.
const (
	ClassLocal          Class = "local"           // users, aliases and lists of this machine
	ClassVirtualAlias   Class = "virtual-alias"   // addresses that lead to others
	ClassVirtualMailbox Class = "virtual-mailbox" // mailboxes whose owners are no users
	ClassRelay          Class = "relay"           // mail goes on to another host
	ClassDefault        Class = "default"         // the rest of the Internet
)

// DefaultMinimumUID is the default of VIRTUALMINIMUMUID, Postfix's.
const DefaultMinimumUID = 100

// Classes is how mailboxes of virtual domains are delivered.
type Classes struct {
	Base       string      // VIRTUALMAILBOXBASE; "": no mailbox is delivered here
	MinimumUID uint32      // VIRTUALMINIMUMUID; 0: 1
	Transport  *text.Route // VIRTUALTRANSPORT; nil: by ta-mailbox
	// Verify: next hops are asked for recipients (ADDRESSVERIFY), those of relay and virtual
	// domains, or those whose entries say so.
	Verify, VerifyRelay, VerifyVirtual bool
}

// verifies reports whether recipients of a domain are to be verified, whose entry and class are
// given.
func (c *Classes) verifies(domain *text.Store, class bool) bool {
	return c.Verify && (domain.Verify == "yes" || domain.Verify == "" && class)
}

// classOf finds the class of a domain, and the entry that has it.
func (t *Tables) classOf(ls lookups, domain string) (Class, found, error) {
	f, ok, err := t.isLocal(ls, domain)
	if ok || err != nil {
		return ClassLocal, f, err
	}
	if len(t.aliasDomains) > 0 {
		if f, ok, err = t.find(ls, text.VirtualAliasDomains, domain); ok || err != nil {
			return ClassVirtualAlias, f, err
		}
	}
	if len(t.mailboxDomains) > 0 {
		if f, ok, err = t.find(ls, text.VirtualMailboxDomains, domain); ok || err != nil {
			return ClassVirtualMailbox, f, err
		}
	}
	if len(t.relayDomains) > 0 && domain[0] != '[' {
		if f, ok, err = t.find(ls, text.RelayDomains, domain); ok || err != nil {
			return ClassRelay, f, err
		}
		for d, more := domain, true; more; _, d, more = strings.Cut(d, ".") {
			if f, ok, err = t.find(ls, text.RelayDomains, "."+d); ok || err != nil {
				return ClassRelay, f, err
			}
		}
	}
	return ClassDefault, found{}, nil
}

// ClassOf returns the class of an address's domain; a bare name is local. Its error is a
// *Trouble.
func (t *Tables) ClassOf(ctx context.Context, m address.Mailbox) (Class, error) {
	if m.Domain == "" {
		return ClassLocal, nil
	}
	d, err := m.ASCIIDomain()
	if err != nil {
		return ClassDefault, nil
	}
	class, _, err := t.classOf(lookups{ctx: ctx}, d)
	return class, err
}

// classed resolves an address of a domain that is virtual or relayed to.
func (x *expansion) classed(class Class, m address.Mailbox, domain string, f found, final bool) error {
	switch class {
	case ClassVirtualAlias:
		x.traceStep(m, string(text.VirtualAliasDomains), f, "%s is a virtual alias domain", domain)
	case ClassVirtualMailbox:
		x.traceStep(m, string(text.VirtualMailboxDomains), f, "%s is a virtual mailbox domain", domain)
	default:
		x.traceStep(m, string(text.RelayDomains), f, "%s is a relay domain", domain)
		return x.relayed(m, domain, &f, final)
	}
	return x.virtual(class, m, domain, &f, final)
}

// virtual resolves an address of a virtual domain: as it is written, then without its tag,
// then as any of the domain. Names of local users and aliases mean nothing there.
func (x *expansion) virtual(class Class, m address.Mailbox, domain string, dom *found, final bool) error {
	names := []string{m.Local}
	base, _, tagged := m.SplitTag(x.t.subaddress)
	if !tagged {
		base, _, tagged = m.SplitTag(verpTag)
		tagged = tagged && hasPrefixFold(m.Local, ownerPrefix)
	}
	if tagged {
		names = append(names, base.Local)
	}
	looped := false
	for _, name := range append(names, "") { // "": the catch-all
		done, again, err := x.virtualName(class, m, name, domain, dom, final)
		if done || err != nil {
			return err
		}
		looped = looped || again
	}
	switch {
	case strings.EqualFold(base.Local, "postmaster"):
		return x.postmaster(m)
	case looped:
		x.traceStep(m, "address", found{}, "a loop: %s", x.path.chain(m.String()))
		return x.failText(ErrLoop, m, x.path.chain(m.String()))
	}
	return x.fail(ErrNoUser, m)
}

// virtualName resolves an address of a virtual domain by one key, name@domain.
func (x *expansion) virtualName(class Class, m address.Mailbox, name, domain string, dom *found, final bool) (done, looped bool, err error) {
	key := strings.ToLower(name) + "@" + domain
	if !final {
		if done, looped, err = x.alias(m, name, key); !done && err == nil && name != "" {
			more := false
			done, more, err = x.list(m, name, "@"+domain, domain)
			looped = looped || more
		}
		if done || err != nil {
			return done, looped, err
		}
	}
	if class != ClassVirtualMailbox {
		return false, looped, nil
	}
	done, err = x.store(m, name, key, domain, dom)
	return done, looped, err
}

// store gives the mailbox that a key of a virtual mailbox domain has.
func (x *expansion) store(m address.Mailbox, name, key, domain string, dom *found) (bool, error) {
	const kind = text.VirtualMailboxMaps
	box := found{}
	if len(x.t.mailboxes) > 0 {
		var ok bool
		var err error
		if box, ok, err = x.t.find(x.lookups, kind, key); err != nil || !ok {
			if err == nil {
				x.traceStep(m, string(kind), found{}, "no mailbox %s", key)
			}
			return false, err
		}
	} else if name == "" {
		return false, nil
	}
	v, d := &box.store, &dom.store
	if to := cmp.Or(v.Transport, d.Transport, x.t.classes.Transport); to != nil && to.Channel != Virtual {
		host := cmp.Or(to.Host, domain)
		x.traceStep(m, string(kind), box, "transport %s!%s", to.Channel, host)
		x.verifies = x.t.classes.verifies(d, x.t.classes.VerifyVirtual)
		defer func() { x.verifies = false }()
		return true, x.add(to.Channel, host, m.String(), Nobody)
	}
	t, err := x.t.storeOf(x.lookups, name, key, domain, &box, dom)
	if err != nil {
		return false, err
	}
	if x.trace != nil {
		x.traceStep(m, string(kind), box, "mailbox %s, uid %d, gid %d", t.s.Path, t.uid, t.s.GID)
	}
	return true, x.add(Virtual, t.s.Host(), m.String(), t.uid)
}

// trusts reports whether a table may say which uid writes a mailbox: its owner is root, or us,
// or that uid.
func (f *found) trusts(uid uint32) bool {
	return f.rights.uid == 0 || f.rights.uid == uint32(os.Geteuid()) && f.rights.uid != Nobody || f.rights.uid == uid
}

// idOf returns the uid or gid of a mailbox: of its own entry, of the maps, of its domain.
func (t *Tables) idOf(ls lookups, kind text.Kind, key, domain string, box, dom *found, of func(*text.Store) uint32) (uint32, error) {
	from, id := *box, of(&box.store)
	for _, k := range []string{key, "@" + domain} {
		if id != 0 || len(*t.layersOf(kind)) == 0 {
			break
		}
		f, ok, err := t.find(ls, kind, k)
		if err != nil {
			return 0, err
		}
		if ok {
			from, id = f, f.id
		}
	}
	if id == 0 {
		from, id = *dom, of(&dom.store)
	}
	setting := strings.ToUpper(string(kind))
	switch {
	case id == 0:
		return 0, &Trouble{Why: string(kind), Err: fmt.Errorf("mailbox %s has no owner: neither it nor %s nor its domain says which (docs/virtual-domains.md)", key, setting)}
	case !from.trusts(id):
		why := cmp.Or(from.rights.why, fmt.Sprintf("it belongs to uid %d", from.rights.uid))
		return 0, &Trouble{Why: string(kind), Err: fmt.Errorf("%s may not say whom mailbox %s belongs to: %s", from.where.file, key, why)}
	}
	return id, nil
}

// ownedStore is a virtual mailbox with its owner.
type ownedStore struct {
	s   workspec.VirtualStore
	uid uint32
}

// storeOf puts together where a mailbox of ours is. Its error is a *Trouble: the configuration
// is wrong, and the mail waits.
func (t *Tables) storeOf(ls lookups, name, key, domain string, box, dom *found) (out ownedStore, err error) {
	v, d := &box.store, &dom.store
	out.uid, err = t.idOf(ls, text.VirtualUIDMaps, key, domain, box, dom, func(s *text.Store) uint32 { return s.UID })
	if err != nil {
		return out, err
	}
	if least := max(t.classes.MinimumUID, 1); out.uid < least {
		return out, &Trouble{Why: string(text.VirtualUIDMaps), Err: fmt.Errorf("mailbox %s has uid %d, below VIRTUALMINIMUMUID=%d", key, out.uid, least)}
	}
	out.s.GID, err = t.idOf(ls, text.VirtualGIDMaps, key, domain, box, dom, func(s *text.Store) uint32 { return s.GID })
	if err != nil {
		return out, err
	}
	path := v.Path
	if path == "" {
		local := strings.ToLower(name)
		if !isLogin(local) || len(local) > 200 {
			return out, &Trouble{Why: string(text.VirtualMailboxMaps), Err: fmt.Errorf("mailbox %s needs a path: its name cannot be that of a directory", cmp.Or(key, domain))}
		}
		path = domain + "/" + local + "/"
	}
	if t.classes.Base == "" {
		return out, &Trouble{Why: string(text.VirtualMailboxMaps), Err: fmt.Errorf("mailbox %s cannot be delivered without VIRTUALMAILBOXBASE", key)}
	}
	out.s.Mailbox, out.s.Path = key, strings.TrimRight(t.classes.Base, "/")+"/"+strings.TrimLeft(path, "/")
	out.s.Mode, out.s.Quota = cmp.Or(v.Mode, d.Mode), -1
	switch {
	case v.HasQuota:
		out.s.Quota = v.Quota
	case d.HasQuota:
		out.s.Quota = d.Quota
	}
	return out, nil
}

// relayed gives an address of a relay domain to the route of its domain, if its recipients are
// not listed, or it is.
func (x *expansion) relayed(m address.Mailbox, domain string, dom *found, final bool) error {
	listed := false
	if len(x.t.relayRcpts) > 0 {
		keys := []string{strings.ToLower(m.Local) + "@" + domain}
		if base, _, tagged := m.SplitTag(x.t.subaddress); tagged {
			keys = append(keys, strings.ToLower(base.Local)+"@"+domain)
		}
		known := false
		for _, key := range append(keys, "@"+domain) {
			f, ok, err := x.t.find(x.lookups, text.RelayRecipientMaps, key)
			if err != nil {
				return err
			}
			if ok {
				x.traceStep(m, string(text.RelayRecipientMaps), f, "listed")
				known, listed = true, key[0] != '@'
				break
			}
		}
		switch {
		case !known && strings.EqualFold(m.Local, "postmaster"): // RFC 5321 section 4.5.1
		case !known:
			x.traceStep(m, string(text.RelayRecipientMaps), found{}, noEntry)
			return x.fail(ErrNoUser, m)
		}
	}
	x.verifies = !listed && x.t.classes.verifies(&dom.store, x.t.classes.VerifyRelay)
	defer func() { x.verifies = false }()
	return x.remote(m, domain, final)
}

// checkClasses looks for domains in two classes, and for keys that can never be found. It sees
// text tables only. Its error is a *config.Error.
func (t *Tables) checkClasses() (err error) {
	seen, asked := map[string]where{t.hostname: {file: "HOSTNAME"}}, false
	for _, kind := range []text.Kind{text.LocalNames, text.VirtualAliasDomains, text.VirtualMailboxDomains, text.RelayDomains} {
		of := map[string]where{}
		for _, l := range *t.layersOf(kind) {
			if l.mem == nil {
				asked = true
				continue
			}
			for _, e := range l.mem.sorted() {
				at := where{l.mem.file, e.line}
				if first, twice := seen[e.key]; twice && !(kind == text.LocalNames && e.key == t.hostname) {
					err = errors.Join(err, &config.Error{File: at.file, Line: at.line,
						Reason: fmt.Sprintf("%s is in %s already: a domain is in one class (%s here)", e.key, first, kind)})
				}
				of[e.key] = at
			}
		}
		for key, at := range of {
			seen[key] = at
		}
	}
	if asked {
		return err
	}
	for _, l := range t.aliases {
		if l.mem == nil || !l.mem.addresses {
			continue
		}
		for _, e := range l.mem.sorted() {
			i := strings.LastIndexByte(e.key, '@')
			if i < 0 || e.key[0] == '"' {
				continue
			}
			if class, _, cerr := t.classOf(lookups{ctx: context.Background()}, e.key[i+1:]); cerr == nil && class != ClassVirtualAlias && class != ClassVirtualMailbox {
				err = errors.Join(err, &config.Error{File: l.mem.file, Line: e.line, Reason: fmt.Sprintf(
					"%s is not in a virtual domain: names of local domains have no @ here; another address belongs in fqdnaliases", e.key)})
			}
		}
	}
	return err
}

// checkMailboxes warns of virtual mailboxes in text tables that get no mail: one line for each reason. Its
// errors are *config.Error.
func (t *Tables) checkMailboxes(ctx context.Context) (err error) {
	ours := t.classes.Transport == nil || t.classes.Transport.Channel == Virtual
	if base := t.classes.Base; base != "" && ours && len(t.mailboxDomains) > 0 {
		if _, serr := os.Stat(base); errors.Is(serr, fs.ErrNotExist) {
			err = &config.Error{File: "VIRTUALMAILBOXBASE", Warning: true, Reason: "does not exist: mail for virtual mailboxes waits", Remedy: "create it, with the owner of the mailboxes (docs/virtual-domains.md)"}
		}
	}
	outside := func(l layer) bool { return l.mem == nil }
	if slices.ContainsFunc(t.mailboxDomains, outside) {
		return err // a database is asked for the addresses that mail comes for
	}
	hasUID, hasGID := slices.ContainsFunc(t.uids, outside), slices.ContainsFunc(t.gids, outside)
	for _, l := range t.mailboxes {
		if l.mem == nil {
			continue
		}
		var foreign, orphan mistakes
		for _, e := range l.mem.sorted() {
			domain := e.key[strings.LastIndexByte(e.key, '@')+1:]
			class, dom, cerr := t.classOf(lookups{ctx: ctx}, domain)
			switch {
			case cerr != nil:
			case class != ClassVirtualMailbox:
				foreign.add(e)
			case e.store.Transport != nil || dom.store.Transport != nil || !ours:
			default:
				box := found{entry: e, rights: l.mem.rights, where: where{l.mem.file, e.line}}
				var why error
				if !hasUID {
					_, why = t.idOf(lookups{ctx: ctx}, text.VirtualUIDMaps, e.key, domain, &box, &dom, func(s *text.Store) uint32 { return s.UID })
				}
				if !hasGID && why == nil {
					_, why = t.idOf(lookups{ctx: ctx}, text.VirtualGIDMaps, e.key, domain, &box, &dom, func(s *text.Store) uint32 { return s.GID })
				}
				if why != nil {
					orphan.add(e)
					orphan.why = cmp.Or(orphan.why, why.Error())
				}
			}
		}
		foreign.why = "its domain is in no table of VIRTUALMAILBOXDOMAINS"
		err = errors.Join(err, foreign.warning(l.mem.file), orphan.warning(l.mem.file))
	}
	return err
}

// mistakes are entries of a table with the same mistake.
type mistakes struct {
	first entry
	count int
	why   string
}

func (m *mistakes) add(e entry) {
	if m.count++; m.count == 1 {
		m.first = e
	}
}

func (m *mistakes) warning(file string) error {
	if m.count == 0 {
		return nil
	}
	more := ""
	if m.count > 1 {
		more = fmt.Sprintf(" (and %d others)", m.count-1)
	}
	return &config.Error{File: file, Line: m.first.line, Warning: true, Reason: fmt.Sprintf("mailbox %s%s gets no mail: %s", m.first.key, more, m.why)}
}

// sorted returns the entries in the order of their lines.
func (m *memory) sorted() []entry {
	list := make([]entry, 0, len(m.entries))
	for _, e := range m.entries {
		list = append(list, e)
	}
	slices.SortFunc(list, func(a, b entry) int { return cmp.Compare(a.line, b.line) })
	return list
}
