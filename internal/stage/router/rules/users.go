package rules

import (
	"errors"
	"fmt"
	"os/user"
	"strconv"
	"strings"
	"sync"
	"time"

	"zmailer/internal/run/config"
)

// User is a local user.
type User struct {
	Login string
	UID   uint32
	Home  string // "": not known
}

// Users knows the local users. An error means that the answer is unknown now.
type Users interface {
	Lookup(login string) (u User, ok bool, err error)
	LookupUID(uid uint32) (u User, ok bool, err error)
}

// How long an answer of the system's user database is kept: a burst of mail costs
// one lookup per user, and a login that was just made is known a second later.
const (
	keepUser   = 5 * time.Second
	keepNoUser = time.Second
	maxKept    = 10000 // answers
)

// passwd asks the system's user database, through NSS where the C library is there.
type passwd struct {
	now func() time.Time

	mu   sync.Mutex
	kept map[string]answer
}

type answer struct {
	user  User
	ok    bool
	until time.Time
}

func newPasswd(now func() time.Time) *passwd {
	return &passwd{now: now, kept: map[string]answer{}}
}

// Lookup implements Users.
func (p *passwd) Lookup(login string) (User, bool, error) {
	now := p.now()
	p.mu.Lock()
	a, kept := p.kept[login]
	p.mu.Unlock()
	if kept && now.Before(a.until) {
		return a.user, a.ok, nil
	}
	found, err := user.Lookup(login)
	if unknown := user.UnknownUserError(""); errors.As(err, &unknown) {
		a = answer{until: now.Add(keepNoUser)}
	} else if err != nil {
		return User{}, false, fmt.Errorf("look up user %s: %w", login, err)
	} else {
		uid, err := strconv.ParseUint(found.Uid, 10, 32)
		if err != nil {
			return User{}, false, fmt.Errorf("look up user %s: uid %q: %w", login, found.Uid, err)
		}
		a = answer{User{login, uint32(uid), found.HomeDir}, true, now.Add(keepUser)}
	}
	p.mu.Lock()
	if len(p.kept) >= maxKept {
		clear(p.kept)
	}
	p.kept[login] = a
	p.mu.Unlock()
	return a.user, a.ok, nil
}

func (p *passwd) remembers(login string) bool {
	now := p.now()
	p.mu.Lock()
	defer p.mu.Unlock()
	a, kept := p.kept[login]
	return kept && now.Before(a.until)
}

// LookupUID implements Users. It is asked for the owners of lists, which is rare.
func (p *passwd) LookupUID(uid uint32) (User, bool, error) {
	found, err := user.LookupId(strconv.FormatUint(uint64(uid), 10))
	if unknown := user.UnknownUserIdError(0); errors.As(err, &unknown) {
		return User{}, false, nil
	}
	if err != nil {
		return User{}, false, fmt.Errorf("look up uid %d: %w", uid, err)
	}
	return User{found.Username, uid, found.HomeDir}, true, nil
}

// logins is the file that LOCALUSERS names: users that need not exist in the
// system.
type logins struct {
	uid   uint32 // privilege of a user whom the system does not know
	names map[string]struct{}
}

func (t *Tables) parseUsers(s source) error {
	l := &logins{uid: s.rights.uid, names: map[string]struct{}{}}
	number := 0
	var wrong config.Mistakes
	for line := range strings.Lines(s.text) {
		number++
		name := strings.TrimSpace(line)
		if name == "" || name[0] == '#' {
			continue
		}
		if !isLogin(name) {
			if wrong.Add(s.bad(number, "want one login name a line", nil)) {
				break
			}
			continue
		}
		l.names[name] = struct{}{}
	}
	if err := wrong.Err(); err != nil {
		return err
	}
	t.logins = l
	return nil
}

// isLogin reports whether a name may be a login: it becomes a word of the work specification
// and a name in the file system.
func isLogin(s string) bool {
	for i := 0; i < len(s); i++ {
		if s[i] <= ' ' || s[i] == 0x7f || s[i] == '/' || s[i] == ':' {
			return false
		}
	}
	return s != "" && s[0] != '.'
}

// user finds a local user by the local part of an address, as written or else in
// lower case.
func (t *Tables) user(local string) (User, bool, error) {
	u, ok, err := t.login(local)
	if lower := strings.ToLower(local); !ok && err == nil && lower != local {
		return t.login(lower)
	}
	return u, ok, err
}

func (t *Tables) login(name string) (User, bool, error) {
	if !isLogin(name) {
		return User{}, false, nil
	}
	if t.logins == nil {
		return t.system(name)
	}
	if _, ok := t.logins.names[name]; !ok {
		return User{}, false, nil
	}
	u, ok, err := t.system(name)
	if err == nil && !ok {
		u = User{Login: name, UID: t.logins.uid}
	}
	return u, true, err
}

func (t *Tables) system(name string) (User, bool, error) {
	u, ok, err := t.passwd.Lookup(name)
	if err != nil {
		err = &Trouble{Why: "users", Err: err}
	}
	return u, ok, err
}
