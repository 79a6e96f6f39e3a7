package rules

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"syscall"

	"zmailer/internal/mail/address"
	"zmailer/internal/run/config"
	"zmailer/internal/table/text"
)

// user resolves an address in one of our domains: as it is written, then without its tag.
func (x *expansion) user(m address.Mailbox, domain string, final bool) error {
	done, looped, err := x.name(m, m.Local, domain, final)
	if done || err != nil {
		return err
	}
	base, _, tagged := m.SplitTag(x.t.subaddress)
	if !tagged {
		// Reports on members of a list come back to owner-LIST+member=domain.
		base, _, tagged = m.SplitTag(verpTag)
		tagged = tagged && hasPrefixFold(m.Local, ownerPrefix)
	}
	if tagged {
		again := false
		if done, again, err = x.name(m, base.Local, domain, final); done || err != nil {
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
	return x.fail(ErrNoUser, qualified(m, domain))
}

// name resolves an address in one of our domains by a name, its local part or that
// without the tag. done: there is such a name. looped: there is, but it is being
// expanded already.
func (x *expansion) name(m address.Mailbox, local, domain string, final bool) (done, looped bool, err error) {
	if !final {
		done, looped, err = x.alias(m, local, text.AliasName(local))
		if !done && err == nil && !strings.Contains(local, "@") { // lists/name@domain is of a virtual domain
			more := false
			done, more, err = x.list(m, local, "", domain)
			looped = looped || more
		}
		if done || err != nil {
			return done, looped, err
		}
	}
	// "bond: bond, bond@example.org" keeps a copy in bond's own mailbox.
	x.beforeUser(local)
	u, ok, err := x.t.user(local)
	if err != nil || !ok {
		if err == nil && x.trace != nil {
			x.traceStep(m, "users", found{}, "no user %s", local)
		}
		return false, looped, err
	}
	return true, looped, x.deliver(u, m, local, domain, final)
}

// alias resolves an address by a key of the aliases: a local name, or name@domain.
func (x *expansion) alias(m address.Mailbox, name, key string) (done, looped bool, err error) {
	if !has(x.t.aliases) {
		return false, false, nil
	}
	f, ok, err := x.t.find(x.lookups, text.Aliases, key)
	if err != nil {
		return false, false, err
	}
	ext, virtual := extension(m, name), strings.LastIndexByte(key, '@')
	if virtual < 0 && !x.t.extend.Alias || virtual >= 0 && !x.t.extend.Virtual {
		ext = ""
	}
	s := step{inAliases, key, ext}
	switch {
	case !ok:
		x.traceStep(m, "aliases", f, noEntry)
		return false, false, nil
	case x.path.has(s):
		x.traceStep(m, "aliases", f, again)
		return false, true, nil
	}
	if ext != "" {
		domain := x.t.hostname
		if virtual >= 0 {
			domain = key[virtual+1:]
		}
		f.values = x.t.extended(f.values, name, domain, ext)
	}
	for i := range f.values {
		if f.values[i].Kind != text.ToInclude {
			continue
		}
		// An :include: with an owner is a list, as sendmail has it.
		_, owned, err := x.t.find(x.lookups, text.Aliases, ownerPrefix+key)
		if err != nil {
			return false, false, err
		}
		if owned {
			return true, false, x.owned(ownerOf(strings.ToLower(name), m, x.t.hostname), false, func() error { return x.expand(s, m, "aliases", f) })
		}
		break
	}
	return true, false, x.expand(s, m, "aliases", f)
}

// deliver gives a user's mail to the targets of his .forward, else to his mailbox.
// local is the name that he was found by: what m has behind it is a tag.
func (x *expansion) deliver(u User, m address.Mailbox, local, domain string, final bool) error {
	if !final && !x.brief {
		if done, err := x.forward(u, m); done || err != nil {
			return err
		}
	}
	return x.mailboxOf(u, m.Local[len(local):], domain, m)
}

// mailboxOf gives a user's mailbox; its agent gets the tag.
func (x *expansion) mailboxOf(u User, tag, domain string, m address.Mailbox) error {
	host := u.Login + "@" + domain
	user := host
	if tag != "" {
		user = address.Mailbox{Local: u.Login + tag, Domain: domain}.String()
	}
	if x.trace != nil {
		x.traceStep(m, "users", at(u.Login, ""), "mailbox of %s, uid %d", u.Login, u.UID)
	}
	return x.add(Local, host, user, u.UID)
}

// qualified gives a bare name its domain.
func qualified(m address.Mailbox, domain string) address.Mailbox {
	if m.Domain == "" {
		m.Domain = domain
	}
	return m
}

// postmaster delivers mail for postmaster, who must exist (RFC 5321 §4.5.1): to the
// POSTMASTER setting, or to root, or if all else fails to root's mailbox whether or
// not there is such a user.
func (x *expansion) postmaster(m address.Mailbox) error {
	var list []address.Mailbox
	for _, to := range []address.Mailbox{x.t.postmaster, {Local: "root"}} {
		ours, err := x.t.isOurs(x.lookups, to)
		if err != nil {
			return err
		}
		if !strings.EqualFold(to.Local, "postmaster") || !ours {
			list = append(list, to)
		}
	}
	done, err := x.first(step{table: inPostmaster, key: "postmaster"}, m, "postmaster", found{where: where{file: "POSTMASTER"}}, list...)
	if done || err != nil {
		return err
	}
	root, ok, err := x.t.system("root")
	if err != nil {
		return err
	}
	if !ok {
		root = User{Login: "root", UID: Nobody}
	}
	return x.mailboxOf(root, "", x.t.hostname, m)
}

func hasPrefixFold(s, prefix string) bool {
	return len(s) >= len(prefix) && strings.EqualFold(s[:len(prefix)], prefix)
}

// include resolves the values in a file that a value with rights names.
func (x *expansion) include(path string, m address.Mailbox, may rights) error {
	if x.brief {
		return x.somebody(m)
	}
	name := ":include:" + path
	l, err := x.t.rolls.open(x.lookups, path)
	if err == nil && !may.admin {
		if err = readable(may.uid, l); err != nil {
			l.close()
		}
	}
	if err != nil {
		return x.ownOf("include", troubleWith("include", name, err))
	}
	defer l.close()
	// The file counts, not its name: it has as many as its owner likes, /a, /./a, links.
	s := step{table: inInclude, key: fmt.Sprintf("%d:%d", l.sig.dev, l.sig.ino)}
	if x.path.has(s) {
		x.traceStep(m, ":include:", at(path, ""), "a loop: %s", x.path.chain(name))
		return x.failText(ErrLoop, x.rcpt, x.path.chain(name))
	}
	inside := may.including(l.rights, path)
	x.traceStep(m, ":include:", at(path, path), "%s", showRights(inside))
	if named := x.verp; x.owner != "" {
		x.verp = named || l.verp
		defer func() { x.verp = named }()
	}
	return x.members(frame{s, name, where{file: path}}, m, l, inside, "include")
}

func (x *expansion) members(f frame, m address.Mailbox, l *list, may rights, why string) error {
	given := error(nil) // what came from below is no trouble with the file
	err := x.within(f, func() error {
		return x.each(l, m, func(v *member) error {
			x.path[len(x.path)-1].where.line = v.line
			given = x.value(&v.Value, m, may)
			return given
		})
	})
	if err == nil || err == given {
		return err
	}
	return x.ownOf(why, troubleWith(why, f.name, err))
}

// isShortage reports whether this process or the system has run out of something: that is
// no fact about the recipient, and the next message would meet it too.
func isShortage(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) || errors.Is(err, syscall.ENOMEM)
}

// troubleWith is why a file of addresses cannot be used now.
func troubleWith(why, name string, err error) error {
	if _, ok := IsTrouble(err); ok || isShortage(err) {
		return err
	}
	if bad := (*config.Error)(nil); errors.As(err, &bad) {
		return &Trouble{Why: why, Err: err} // names file and line
	}
	if perr := (*fs.PathError)(nil); errors.As(err, &perr) {
		err = perr.Err // the name is in front already
	}
	return &Trouble{Why: why, Err: fmt.Errorf("%s: %w", name, err)}
}
