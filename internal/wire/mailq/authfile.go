package mailq

import (
	"net/netip"
	"strconv"
	"strings"
)

// Rights are what a client may ask for.
type Rights uint8

// Rights, in the words of an authfile.
const (
	MaySNMP Rights = 1 << iota // SNMP: SHOW SNMP
	MayQQ                      // QQ: SHOW QUEUE SHORT, JSON STATUS
	MayTT                      // TT: threads and messages, events
	MayETRN                    // ETRN
	MayKill                    // KILL
	loggedIn
)

// All is every right.
const All = MaySNMP | MayQQ | MayTT | MayETRN | MayKill | loggedIn

// None is what somebody may who has not logged in.
const None Rights = 0

// May reports whether the rights are enough for a request. AUTH and QUIT need none,
// SHOW COUNTERS that of everybody who has logged in.
func (r Rights) May(k Kind) bool {
	need := loggedIn
	switch k {
	case Auth, Quit:
		return true
	case Counters:
	case SNMP:
		need |= MaySNMP
	case Short, JSONStatus:
		need |= MayQQ
	case Threads, Threads2, Thread, JSONThreads, JSONThread, JSONMessage, JSONEvents:
		need |= MayTT
	case ETRN:
		need |= MayETRN
	default: // an unknown request needs the greatest right
		need |= MayKill
	}
	return r&need == need
}

// LoggedIn reports whether the client has logged in.
func (r Rights) LoggedIn() bool { return r&loggedIn != 0 }

// AuthFile is a read authfile.
type AuthFile struct {
	users []account
	// Bad are the lines that cannot be read, by their numbers from 1.
	Bad []int
}

// account is a line of it: one user from some addresses.
type account struct {
	user, password string
	rights         Rights
	from           []origin // empty: anywhere
}

// origin is an address, or a network, that a user may come from, or may not.
type origin struct {
	net   netip.Prefix
	never bool
}

// ParseAuthFile reads lines "user:password:RIGHTS:[address]/bits ...". Lines that begin
// with # or * are comments. A password holds no colon.
func ParseAuthFile(text []byte) *AuthFile {
	f := &AuthFile{}
	n := 0
	for line := range strings.Lines(string(text)) {
		n++
		line = strings.TrimRight(line, "\r\n")
		if line == "" || line[0] == '#' || line[0] == '*' {
			continue
		}
		a, ok := parseAccount(line)
		if !ok {
			f.Bad = append(f.Bad, n)
			continue
		}
		f.users = append(f.users, a)
	}
	return f
}

func parseAccount(line string) (a account, ok bool) {
	f := strings.SplitN(line, ":", 4)
	if len(f) != 4 || f[0] == "" || strings.ContainsAny(f[0], " \t") {
		return a, false
	}
	a = account{user: f[0], password: f[1], rights: loggedIn}
	for _, word := range strings.Fields(f[2]) {
		switch word {
		case "SNMP":
			a.rights |= MaySNMP
		case "QQ":
			a.rights |= MayQQ
		case "TT":
			a.rights |= MayTT
		case "ETRN":
			a.rights |= MayETRN
		case "KILL":
			a.rights |= MayKill
		case "ALL":
			a.rights = All
		case "NONE":
		default:
			return a, false
		}
	}
	for _, word := range strings.FieldsFunc(f[3], func(r rune) bool { return r == ' ' || r == '\t' || r == ',' }) {
		o, ok := parseOrigin(word)
		if !ok {
			return a, false
		}
		a.from = append(a.from, o)
	}
	return a, true
}

// parseOrigin reads "[192.0.2.1]/24", "[IPv6:2001:db8::]/32", "[...]" alone for one
// address, and any of them behind "!" for one that is kept out.
func parseOrigin(s string) (o origin, ok bool) {
	s, o.never = strings.CutPrefix(s, "!")
	s, ok = strings.CutPrefix(s, "[")
	if !ok {
		return o, false
	}
	text, bits, ok := strings.Cut(s, "]")
	if !ok {
		return o, false
	}
	six := len(text) > 5 && strings.EqualFold(text[:4], "IPv6") && (text[4] == ':' || text[4] == '.')
	if six {
		text = text[5:]
	}
	addr, err := netip.ParseAddr(text)
	if err != nil || addr.Zone() != "" || addr.Is4() == six {
		return o, false
	}
	n := addr.BitLen()
	if bits != "" {
		number, ok := strings.CutPrefix(bits, "/")
		if !ok {
			return o, false
		}
		if n, err = strconv.Atoi(number); err != nil {
			return o, false
		}
	}
	o.net, err = addr.Prefix(n)
	return o, err == nil
}

// allows reports whether a login is allowed from an address: the first entry that matches
// decides. Without one it is not.
func (a *account) allows(from netip.Addr) bool {
	if len(a.from) == 0 {
		return true
	}
	for _, o := range a.from {
		if o.net.Contains(from) {
			return !o.never
		}
	}
	return false
}

// Login returns the rights of a user who proves to know his password, coming from an
// address; None if he does not. The first line with his name that lets him in from there
// counts.
func (f *AuthFile) Login(user, digest, challenge string, from netip.Addr) Rights {
	from = from.Unmap().WithZone("")
	for i := range f.users {
		a := &f.users[i]
		if a.user != user || !a.allows(from) {
			continue
		}
		if Proves(challenge, a.password, digest) {
			return a.rights
		}
		return None
	}
	return None
}
