package mailbox

import (
	"fmt"
	"os"
	"os/user"
	"path"
	"strconv"
	"strings"

	"zmailer/internal/mail/status"
	"zmailer/internal/stage/agent"
	"zmailer/internal/workspec"
)

// target is where one recipient's mail goes, and as whom.
type target struct {
	path  string // absolute; with / at the end a Maildir
	home  string // must exist already if not ""
	as    identity
	spool bool // a place that root may make for the user (see create)
	// Of virtual mailboxes: the mode of files, 0 for 0600, and their quota.
	mode  uint32
	quota *Quota // nil: that of all
}

// dirMode returns the mode of a store's directories: who may read files may list them.
func (t *target) dirMode() uint32 {
	if t.mode == 0 {
		return 0o700
	}
	return t.mode | t.mode&0o440>>2
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
	case r.Channel == workspec.Virtual:
		return m.virtualTarget(r)
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

// virtualTarget finds the store of a virtual mailbox. The specification says where it is;
// zmailer.conf says where it may be, and whose: what code in the router could write there
// reaches no other file and no account of the system.
func (m *Mailbox) virtualTarget(r *agent.Recipient) (target, error) {
	s, err := workspec.ParseVirtualStore(r.Host)
	if err != nil {
		return target{}, &fault{code: configTrouble, text: "the virtual mailbox cannot be read from its host", err: err}
	}
	refuse := func(why string) (target, error) {
		return target{}, &fault{code: configTrouble, text: "the virtual mailbox is not written: " + why}
	}
	uid := privilege(r.Privilege)
	bare := strings.TrimSuffix(s.Path, "/")
	base := strings.TrimRight(m.c.Virtual.Base, "/")
	switch {
	case m.c.Virtual.Base == "":
		return refuse("VIRTUALMAILBOXBASE is not set")
	case bare != path.Clean(bare) || !strings.HasPrefix(bare, base+"/") || strings.ContainsRune(s.Path, 0):
		return refuse("its path is not below VIRTUALMAILBOXBASE=" + m.c.Virtual.Base)
	case uid < max(m.c.Virtual.MinimumUID, 1) || uid == nobody:
		return refuse(fmt.Sprintf("uid %d is below VIRTUALMINIMUMUID=%d, or the user nobody's", uid, max(m.c.Virtual.MinimumUID, 1)))
	case s.GID == 0 || s.Mode&^0o660 != 0:
		return refuse("its group or mode is not one that a mailbox may have")
	}
	t := target{path: s.Path, as: identity{uid: uid, gid: int(s.GID)}, spool: true, mode: s.Mode}
	if s.Quota >= 0 {
		t.quota = &Quota{Bytes: s.Quota, Fail: m.c.Quota.Fail}
	}
	return t, nil
}

// quotaOf returns the quota of a store.
func (m *Mailbox) quotaOf(t *target) Quota {
	if t.quota != nil {
		return *t.quota
	}
	return m.c.Quota
}

// hasTag reports whether a local part is a login and a tag.
func hasTag(local, login string) bool {
	return login != "" && len(local) > len(login) && strings.EqualFold(local[:len(login)], login)
}

// privilege returns the uid in an r line; what cannot be read has none.
func privilege(s string) int {
	n, err := strconv.ParseUint(s, 10, 31)
	if err != nil {
		return nobody
	}
	return int(n)
}

// A tag, as in user+tag, changes nothing about where ta-mailbox puts a message. So
// recipients who are one user get one copy, and each of them the result of that one. The
// copy is named after the first of them in the file, whether that one is still open or not:
// another attempt, for those that are left, finds it under that name.

// copies parts recipients by the copies that they get, in the order of the first of each.
func copies(d *agent.Delivery) [][]*agent.Recipient {
	var out [][]*agent.Recipient
	places := map[*workspec.Recipient]int{}
	for _, r := range d.Recipients {
		lead := leadOf(d, r)
		i, known := places[lead]
		if !known {
			i = len(out)
			places[lead] = i
			out = append(out, nil)
		}
		out[i] = append(out[i], r)
	}
	return out
}

// leadOf returns the recipient after whom the copy is named that a recipient gets.
func leadOf(d *agent.Delivery, r *agent.Recipient) *workspec.Recipient {
	if !shares(d, r.Recipient, r.Group) {
		return r.Recipient
	}
	for i := range r.Group.Recipients {
		one := &r.Group.Recipients[i]
		if one.Host == r.Host && one.Offset <= r.Offset && shares(d, one, r.Group) {
			return one
		}
	}
	return r.Recipient
}

// shares reports whether a recipient may share a copy with others of its group. A sender
// that names the recipient (VERP) is written into the copy, and a loop is one recipient's alone.
func shares(d *agent.Delivery, r *workspec.Recipient, g *workspec.Group) bool {
	if r.Channel != "local" || !strings.Contains(r.Host, "@") || g.Sender.VERP != "" {
		return false
	}
	login, _ := cutAddress(r.Host)
	local, _ := cutAddress(r.Address)
	return (strings.EqualFold(local, login) || hasTag(local, login)) && loops(d, g, r.Address) == nil
}

// TemplateError is a MAILBOX value that cannot be used.
type TemplateError struct {
	Template string
	Reason   string
}

func (e *TemplateError) Error() string {
	return fmt.Sprintf("MAILBOX=%s: %s", e.Template, e.Reason)
}

// template is a parsed MAILBOX value.
type template struct {
	parts    []string // text and, at odd places, the character of a % sequence
	usesHome bool
}

func parseTemplate(s string) (template, error) {
	bad := func(reason string) (template, error) { return template{}, &TemplateError{s, reason} }
	if !strings.HasPrefix(s, "/") && !strings.HasPrefix(s, "%h/") {
		return bad("it must be a path from the root, or start with %h/")
	}
	var t template
	text, user := "", false
	for i := 0; i < len(s); i++ {
		if s[i] != '%' {
			text += s[i : i+1]
			continue
		}
		if i++; i == len(s) {
			return bad("it ends in the middle of a % sequence")
		}
		switch c := s[i]; c {
		case '%':
			text += "%"
			continue
		case 'u', 'd', 'h':
			user = user || c != 'd'
			t.usesHome = t.usesHome || c == 'h'
			t.parts = append(t.parts, text, string(c))
			text = ""
		default:
			return bad("%" + string(c) + " is none of %u, %h, %d, %%")
		}
	}
	t.parts = append(t.parts, text)
	if !user {
		return bad("without %u or %h all users would share one mailbox")
	}
	return t, nil
}

// expand returns the path for a user. The values must be safe elements, home a path.
func (t *template) expand(login, home, domain string) (string, error) {
	var b strings.Builder
	for i, p := range t.parts {
		switch {
		case i%2 == 0:
			b.WriteString(p)
		case p == "u":
			b.WriteString(login)
		case p == "d":
			if domain == "" {
				return "", &fault{code: configTrouble, text: "MAILBOX wants a domain and the address has none"}
			}
			b.WriteString(domain)
		case p == "h":
			if !path.IsAbs(home) || path.Clean(home) == "/" {
				return "", &fault{code: configTrouble, text: "the user has no home directory"}
			}
			b.WriteString(strings.TrimRight(home, "/"))
		}
	}
	return b.String(), nil
}

// safeElement reports whether a name can be an element of a path without leading
// anywhere else: it has no slash, is not "." or "..", and holds no control
// characters.
func safeElement(s string) bool {
	if s == "" || s == "." || s == ".." || len(s) > 200 {
		return false
	}
	return !strings.ContainsFunc(s, func(r rune) bool { return r == '/' || r < ' ' || r == 0x7f })
}

// cutAddress parts user@domain at the last @ and unquotes the user.
func cutAddress(s string) (login, domain string) {
	login = s
	if i := strings.LastIndexByte(s, '@'); i >= 0 {
		login, domain = s[:i], s[i+1:]
	}
	if len(login) >= 2 && login[0] == '"' && login[len(login)-1] == '"' {
		var b strings.Builder
		quoted := login[1 : len(login)-1]
		for i := 0; i < len(quoted); i++ {
			if quoted[i] == '\\' && i+1 < len(quoted) {
				i++
			}
			b.WriteByte(quoted[i])
		}
		login = b.String()
	}
	return login, domain
}

// configTrouble is RFC 3463's 4.3.5, system incorrectly configured.
var configTrouble = status.Code{Class: 4, Subject: 3, Detail: 5}
