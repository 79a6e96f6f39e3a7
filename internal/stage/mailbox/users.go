package mailbox

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/user"
	"strconv"
	"strings"
	"sync"
	"time"

	"zmailer/internal/mail/status"
)

// nobody is the uid and gid of what has no owner, 65534.
const nobody = 65534

// rememberFor is how long an account is used without another look.
const rememberFor = time.Minute

// account is what is known of a local user.
type account struct {
	login    string
	home     string
	uid, gid int
	known    bool // to the system; else uid and gid are not set
}

// users finds local users: those of the system's passwd, or those of a list.
type users struct {
	list string // path; "": passwd
	now  func() time.Time
	// lookupID is user.LookupId.
	lookupID func(uid string) (*user.User, error)

	mu     sync.Mutex
	byName map[string]remembered[account]
	groups map[int]remembered[int]
}

type remembered[T any] struct {
	value T
	until time.Time
}

func newUsers(source string, now func() time.Time) *users {
	if source == "passwd" {
		source = ""
	}
	return &users{list: source, now: now, lookupID: user.LookupId, byName: map[string]remembered[account]{}, groups: map[int]remembered[int]{}}
}

// find looks a login up, as it stands and then in lower case. A user that does not
// exist is a fault with status 5.1.1; trouble with the look-up is temporary.
func (u *users) find(login string) (account, error) {
	u.mu.Lock()
	r, ok := u.byName[login]
	u.mu.Unlock()
	if ok && u.now().Before(r.until) {
		return r.value, nil
	}
	a, err := u.look(login)
	if lower := strings.ToLower(login); err == errUnknown && lower != login {
		a, err = u.look(lower)
	}
	if err == errUnknown {
		return account{}, &fault{code: status.BadMailbox, text: "there is no user " + strconv.Quote(login) + " here"}
	}
	if err != nil {
		return account{}, lookupFault(err)
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(u.byName) >= 10000 {
		clear(u.byName)
	}
	u.byName[login] = remembered[account]{a, u.now().Add(rememberFor)}
	return a, nil
}

var errUnknown = errors.New("no such user")

// look asks the system, and the list if there is one.
func (u *users) look(login string) (account, error) {
	if u.list != "" {
		ok, err := u.listed(login)
		if err != nil {
			return account{}, err
		}
		if !ok {
			return account{}, errUnknown
		}
	}
	sys, err := user.Lookup(login)
	if unknown := user.UnknownUserError(""); errors.As(err, &unknown) {
		if u.list != "" {
			return account{login: login}, nil
		}
		return account{}, errUnknown
	}
	if err != nil {
		return account{}, fmt.Errorf("look up %q: %w", login, err)
	}
	uid, err1 := strconv.Atoi(sys.Uid)
	gid, err2 := strconv.Atoi(sys.Gid)
	if err := errors.Join(err1, err2); err != nil {
		return account{}, fmt.Errorf("look up %q: %w", login, err)
	}
	return account{login: login, home: sys.HomeDir, uid: uid, gid: gid, known: true}, nil
}

// listed looks for a line of the list.
func (u *users) listed(login string) (bool, error) {
	b, err := os.ReadFile(u.list)
	if err != nil {
		return false, err
	}
	for line := range bytes.Lines(b) {
		if line = bytes.TrimSpace(line); len(line) > 0 && line[0] != '#' && string(line) == login {
			return true, nil
		}
	}
	return false, nil
}

// byID looks a uid up; nil: it has no account.
func (u *users) byID(uid int) (*user.User, error) {
	sys, err := u.lookupID(strconv.Itoa(uid))
	if unknown := user.UnknownUserIdError(0); errors.As(err, &unknown) {
		return nil, nil
	}
	if err != nil {
		return nil, lookupFault(fmt.Errorf("look up uid %d: %w", uid, err))
	}
	return sys, nil
}

// lookupFault is trouble with the look-up, which says nothing of the user.
func lookupFault(err error) error {
	return &fault{code: status.SystemTrouble, text: "users cannot be looked up", err: err}
}

// group is the primary group of a uid, nobody's if the uid has no account.
func (u *users) group(uid int) (int, error) {
	u.mu.Lock()
	r, ok := u.groups[uid]
	u.mu.Unlock()
	if ok && u.now().Before(r.until) {
		return r.value, nil
	}
	gid := nobody
	sys, err := u.byID(uid)
	if err != nil {
		return 0, err
	}
	if sys != nil {
		if gid, err = strconv.Atoi(sys.Gid); err != nil {
			return 0, lookupFault(fmt.Errorf("look up uid %d: %w", uid, err))
		}
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.groups[uid] = remembered[int]{gid, u.now().Add(rememberFor)}
	return gid, nil
}
