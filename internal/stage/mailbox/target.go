package mailbox

import (
	"os"
	"os/user"
	"path"
	"strconv"
	"strings"

	"zmailer/internal/mail/status"
	"zmailer/internal/stage/agent"
)

// target is where one recipient's mail goes, and as whom.
type target struct {
	path  string // absolute; with / at the end a Maildir
	home  string // must exist already if not ""
	as    identity
	spool bool // a place that root may make for the user (see create)
}

// target finds the store of a recipient.
func (m *Mailbox) target(r *agent.Recipient) (target, error) {
	switch {
	case r.Channel == "bitbucket":
		return target{path: os.DevNull}, nil
	case r.Channel == "file",
		// ZMailer's router gives files to the channel local; the host of a user there
		// always has an @.
		r.Channel == "local" && strings.HasPrefix(r.Host, "file.") && !strings.Contains(r.Host, "@"):
		return m.fileTarget(r)
	case r.Channel == "local":
		return m.userTarget(r)
	}
	return target{}, &fault{code: configTrouble, text: "ta-mailbox does not serve the channel " + r.Channel}
}

func (m *Mailbox) fileTarget(r *agent.Recipient) (target, error) {
	p := r.Address
	bare := strings.TrimSuffix(p, "/")
	if !strings.HasPrefix(p, "/") || bare == "" || bare != path.Clean(bare) || strings.ContainsRune(p, 0) {
		return target{}, &fault{code: status.BadAddress, text: "not a plain path from the root"}
	}
	uid := privilege(r.Privilege)
	if uid == 0 && m.c.FileUser != "" && m.creds.root {
		// What the daemons write is not root's word.
		u, err := user.Lookup(m.c.FileUser)
		if err != nil {
			return target{}, &fault{code: configTrouble, text: "not written: DAEMONUSER in zmailer.conf cannot be looked up: " + err.Error()}
		}
		id := identity{}
		if id.uid, id.gid, err = ids(u); err != nil || id.uid == 0 {
			return target{}, &fault{code: configTrouble, text: "not written: DAEMONUSER in zmailer.conf is root"}
		}
		return target{path: p, as: id}, nil
	}
	gid, err := m.users.group(uid)
	return target{path: p, as: identity{uid: uid, gid: gid}}, err
}

func (m *Mailbox) userTarget(r *agent.Recipient) (target, error) {
	login, domain := cutAddress(r.Address)
	if host, _ := cutAddress(r.Host); strings.Contains(r.Host, "@") && hasTag(login, host) {
		login = host // the router knows whose address user+tag is
	}
	if !safeElement(login) || domain != "" && !safeElement(domain) {
		return target{}, &fault{code: status.BadAddress, text: "not a name that a mailbox can have"}
	}
	u, err := m.users.find(login)
	if err != nil {
		return target{}, err
	}
	t := target{as: identity{uid: u.uid, gid: u.gid}, spool: true}
	if !u.known {
		uid := privilege(r.Privilege)
		gid, err := m.users.group(uid)
		if err != nil {
			return target{}, err
		}
		t.as = identity{uid: uid, gid: gid}
	}
	t.path, err = m.stores.expand(u.login, u.home, domain)
	if err == nil && m.stores.usesHome {
		t.home = u.home
	}
	return t, err
}

// hasTag tells whether a local part is a login and a tag.
func hasTag(local, login string) bool {
	return login != "" && len(local) > len(login) && strings.EqualFold(local[:len(login)], login)
}

// privilege is the uid in an r line; what cannot be read has none.
func privilege(s string) int {
	n, err := strconv.ParseUint(s, 10, 31)
	if err != nil {
		return nobody
	}
	return int(n)
}
