package rules

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"

	"zmailer/internal/address"
	"zmailer/internal/table/text"
)

// MaxDepth is how deep aliases may lead into one another.
const MaxDepth = 64

// Tables are the rules at one moment. It may be used by many goroutines and does
// not change, but for users and lists, which are looked up.
type Tables struct {
	hostname   string // A-labels, lower case
	postmaster address.Mailbox
	passwd     Users
	includes   *includes

	local   map[string]struct{} // domains that are ours
	routes  *routes
	aliases *aliasTable
	fqdn    *aliasTable
	logins  *logins // nil: every user of the system
}

// Hostname is this machine's domain in lower-case A-labels.
func (t *Tables) Hostname() string { return t.hostname }

// IsLocal tells whether a mailbox is in a domain that is ours; a bare name is.
func (t *Tables) IsLocal(m address.Mailbox) bool {
	if m.Domain == "" {
		return true
	}
	d, err := m.ASCIIDomain()
	return err == nil && t.isLocal(d)
}

func (t *Tables) isLocal(domain string) bool {
	_, ok := t.local[domain]
	return ok
}

// Query is a recipient whose targets are wanted.
type Query struct {
	Recipient address.Mailbox
	Report    bool       // the message is a report, for which other routes may hold
	Trace     func(Step) // told of each step; nil: nobody wants to know
}

// Step is one thing that was looked up on the way to a target.
type Step struct {
	Depth   int
	Address string // what was looked up
	Table   string // aliases fqdnaliases localnames routes lists :include: .forward users postmaster address
	Where   string // "/etc/zmailer/aliases:12", "db:/etc/zmailer/aliases.db:12"; "" if nothing fitted
	Key     string // the key that fitted; ""
	Result  string // for people
}

// Resolve gives the targets of a recipient as they are found, always one at least. Its
// error is a *Trouble, or the one that give returned; what was given before does not
// count then.
func (t *Tables) Resolve(ctx context.Context, q Query, give func(Target) error) error {
	x := expansion{ctx: ctx, t: t, rcpt: q.Recipient, report: q.Report, trace: q.Trace, give: give}
	if err := x.mailbox(q.Recipient, false); err != nil {
		return err
	}
	if x.given == 0 {
		// A list without members: its mail goes to nobody, which is a delivery.
		return x.add(Bitbucket, "-", q.Recipient.String(), Nobody)
	}
	return nil
}

// step is one thing that is being expanded.
type step struct {
	table byte // 'f': fqdnaliases, 'a': aliases, 'i': include, 'p': the postmaster setting
	key   string
}

// expansion is one recipient's way through the tables.
type expansion struct {
	ctx    context.Context
	t      *Tables
	rcpt   address.Mailbox
	report bool
	trace  func(Step)
	give   func(Target) error
	given  int
	path   []step            // from rcpt to what is expanded now
	via    []string          // the same for people
	done   map[step]struct{} // expanded: a second time would give duplicates
}

func (x *expansion) add(channel, host, user string, uid uint32) error {
	x.given++
	return x.give(Target{Channel: channel, Host: host, User: user, Privilege: uid, Via: x.via})
}

func (x *expansion) fail(why string, m address.Mailbox) error {
	return x.add(Error, why, m.String(), Nobody)
}

func (x *expansion) onPath(s step) bool { return slices.Contains(x.path, s) }

// mailbox resolves an address. final: it is not to be looked up in aliases.
func (x *expansion) mailbox(m address.Mailbox, final bool) error {
	if m.IsNull() || m.Local == "" {
		return x.fail(ErrBadAddress, m)
	}
	domain := x.t.hostname
	if m.Domain != "" {
		d, err := m.ASCIIDomain()
		if err != nil {
			return x.fail(ErrBadAddress, m)
		}
		domain = d
	}
	if x.t.fqdn != nil && len(x.t.fqdn.values) > 0 && !final {
		key := fqdnKey(m.Local, domain)
		values, ok := x.t.fqdn.lookup(key)
		if !ok {
			values, ok = x.t.fqdn.lookup(key[strings.LastIndexByte(key, '@'):])
		}
		// An address that leads to itself goes on to the other tables.
		if s := (step{'f', key}); ok && !x.onPath(s) {
			return x.expand(s, m, values, x.t.fqdn.uid)
		}
	}
	if x.t.isLocal(domain) {
		return x.user(m, domain, final)
	}
	return x.remote(m, domain, final)
}

// remote gives an address to its domain's route.
func (x *expansion) remote(m address.Mailbox, domain string, final bool) error {
	to, ok := x.t.routes.lookup(domain, x.report)
	if !ok {
		to.channel = SMTP
	}
	if to.channel == Local {
		return x.user(m, domain, final)
	}
	if to.host == "" {
		to.host = domain
		if v6, ok := strings.CutPrefix(domain, "[ipv6:"); ok {
			to.host = "[" + v6
		}
	}
	return x.add(to.channel, to.host, m.String(), Nobody)
}

// user resolves an address in one of our domains.
func (x *expansion) user(m address.Mailbox, domain string, final bool) error {
	name := strings.ToLower(m.Local)
	loop := false
	if values, ok := x.t.aliases.lookup(name); ok && !final {
		s := step{'a', name}
		if !x.onPath(s) {
			return x.expand(s, m, values, x.t.aliases.uid)
		}
		// "bond: bond, bond@example.org" keeps a copy in bond's own mailbox.
		loop = true
	}
	u, ok, err := x.t.user(m.Local)
	switch {
	case err != nil:
		return err
	case ok:
		return x.mailboxOf(u, domain)
	case name == "postmaster":
		return x.postmaster(m)
	case loop:
		return x.fail(ErrLoop, m)
	}
	return x.fail(ErrNoUser, qualified(m, domain))
}

// qualified gives a bare name its domain.
func qualified(m address.Mailbox, domain string) address.Mailbox {
	if m.Domain == "" {
		m.Domain = domain
	}
	return m
}

func (x *expansion) mailboxOf(u User, domain string) error {
	where := u.Login + "@" + domain
	return x.add(Local, where, where, u.UID)
}

// postmaster delivers mail for postmaster, who must exist (RFC 5321 §4.5.1): to the
// POSTMASTER setting, or to root, or if all else fails to root's mailbox whether or
// not there is such a user.
func (x *expansion) postmaster(m address.Mailbox) error {
	s := step{'p', "postmaster"}
	if !x.onPath(s) {
		setting := x.t.postmaster
		for _, to := range []address.Mailbox{setting, {Local: "root"}} {
			if strings.EqualFold(to.Local, "postmaster") && x.t.IsLocal(to) {
				continue
			}
			good, err := x.leads(s, m, to)
			if err != nil {
				return err
			}
			if good {
				return x.expand(s, m, []value{{mailbox: to}}, Nobody)
			}
		}
	}
	root, ok, err := x.t.system("root")
	if err != nil {
		return err
	}
	if !ok {
		root = User{"root", Nobody}
	}
	return x.mailboxOf(root, x.t.hostname)
}

// leads tells whether all targets of a value can be delivered. Nothing is given.
func (x *expansion) leads(s step, m, to address.Mailbox) (bool, error) {
	try := *x
	try.done, try.trace = maps.Clone(x.done), nil
	try.give = func(t Target) error {
		if t.Channel == Error {
			return errUndeliverable
		}
		return nil
	}
	err := try.expand(s, m, []value{{mailbox: to}}, Nobody)
	if errors.Is(err, errUndeliverable) {
		return false, nil
	}
	return err == nil, err
}

var errUndeliverable = errors.New("a target cannot be delivered")

// expand resolves the values that an address has in a table.
func (x *expansion) expand(s step, m address.Mailbox, values []value, uid uint32) error {
	name := ":include:" + s.key
	if s.table != 'i' {
		name = m.String()
	}
	return x.within(s, name, func() error {
		for i := range values {
			if err := x.value(&values[i], m, uid); err != nil {
				return err
			}
		}
		return nil
	})
}

// within does one step of the way, once per recipient.
func (x *expansion) within(s step, name string, do func() error) error {
	if _, again := x.done[s]; again {
		return nil
	}
	if len(x.path) >= MaxDepth {
		return x.fail(ErrLoop, x.rcpt)
	}
	path, via := x.path, x.via
	x.path = append(path[:len(path):len(path)], s)
	x.via = append(via[:len(via):len(via)], name)
	err := do()
	x.path, x.via = path, via
	if x.done == nil {
		x.done = map[step]struct{}{}
	}
	x.done[s] = struct{}{}
	return err
}

// value resolves one value of m, which acts with the privilege uid.
func (x *expansion) value(v *value, m address.Mailbox, uid uint32) error {
	owner := strconv.FormatUint(uint64(uid), 10)
	switch v.kind {
	case text.ToPipe:
		return x.add(Pipe, "pipe."+owner, v.text, uid)
	case text.ToFile:
		if v.text == "/dev/null" {
			return x.add(Bitbucket, "-", v.text, Nobody)
		}
		return x.add(File, "file."+owner, v.text, uid)
	case text.ToInclude:
		return x.include(v.text, m)
	default:
		to := v.mailbox
		if strings.Contains(to.Local, text.UserPart) {
			to.Local = strings.ReplaceAll(to.Local, text.UserPart, m.Local)
		}
		return x.mailbox(to, v.final)
	}
}

// include resolves the values in a file.
func (x *expansion) include(path string, m address.Mailbox) error {
	s := step{'i', path}
	if x.onPath(s) {
		return x.fail(ErrLoop, x.rcpt)
	}
	values, uid, err := x.t.includes.get(path)
	if err != nil {
		return err
	}
	return x.expand(s, m, values, uid)
}

// IsTrouble gives the *Trouble in an error.
func IsTrouble(err error) (*Trouble, bool) {
	t := (*Trouble)(nil)
	ok := errors.As(err, &t)
	return t, ok
}
