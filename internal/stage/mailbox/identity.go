package mailbox

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/user"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"zmailer/internal/mail/status"
)

// identity is whom the file system takes us for.
type identity struct{ uid, gid int }

// credentials changes the identity of one thread while a store is worked on, so
// that the kernel checks the user's rights and files are the user's. Without root's
// privilege everything is done as ourselves.
type credentials struct {
	root   bool
	gid    int
	groups []uint32
}

func ownCredentials() (*credentials, error) {
	groups, err := unix.Getgroups()
	if err != nil {
		return nil, fmt.Errorf("get groups: %w", err)
	}
	c := &credentials{root: unix.Geteuid() == 0, gid: unix.Getegid()}
	for _, g := range groups {
		c.groups = append(c.groups, uint32(g))
	}
	return c, nil
}

// as calls f with an identity for the file system. Calls do not nest.
func (c *credentials) as(id identity, f func() error) (err error) {
	if !c.root || id.uid == 0 {
		return f()
	}
	// setfsuid(2) and setgroups(2) are of the thread; the runtime never starts a
	// thread from a locked one, so no other thread inherits the ids set here.
	runtime.LockOSThread()
	if err := c.enter(id); err != nil {
		c.leave()
		return err
	}
	defer c.leave()
	return f()
}

func (c *credentials) enter(id identity) error {
	if err := setThreadGroups([]uint32{uint32(id.gid)}); err != nil {
		return fmt.Errorf("become uid %d: setgroups: %w", id.uid, err)
	}
	if err := setFS(id); err != nil {
		return fmt.Errorf("become uid %d: %w", id.uid, err)
	}
	return nil
}

// leave makes the thread root's again.
func (c *credentials) leave() {
	if err := setFS(identity{0, c.gid}); err != nil {
		die(err)
	}
	if err := setThreadGroups(c.groups); err != nil {
		die(fmt.Errorf("setgroups: %w", err))
	}
	runtime.UnlockOSThread()
}

// die ends the process, without recovery: a thread that works as somebody
// else must not go on. The locks of a dead agent are taken over.
func die(err error) {
	go func() { panic(fmt.Sprintf("change identity: %v", err)) }()
	select {}
}

// asRoot calls f as root from within as.
func (c *credentials) asRoot(id identity, f func() error) error {
	if !c.root || id.uid == 0 {
		return f()
	}
	if err := setFS(identity{0, c.gid}); err != nil {
		return err
	}
	err := f()
	if serr := setFS(id); serr != nil {
		die(serr)
	}
	return err
}

// setFS sets both ids. The calls do not report a failure: a call with -1
// does.
func setFS(id identity) error {
	_, _ = unix.SetfsgidRetGid(id.gid)
	_, _ = unix.SetfsuidRetUid(id.uid)
	uid, _ := unix.SetfsuidRetUid(-1)
	gid, _ := unix.SetfsgidRetGid(-1)
	if uid != id.uid || gid != id.gid {
		return fmt.Errorf("setfsuid: the system refused uid %d, gid %d", id.uid, id.gid)
	}
	return nil
}

// setThreadGroups is setgroups(2) for this thread alone; the library's function
// changes the whole process.
func setThreadGroups(groups []uint32) error {
	var first unsafe.Pointer
	if len(groups) > 0 {
		first = unsafe.Pointer(&groups[0])
	}
	_, _, e := unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(groups)), uintptr(first), 0)
	if e != 0 {
		return e
	}
	return nil
}

// nobody is the uid and gid of the user nobody.
const nobody = 65534

// rememberFor is how long an account is used without another look.
const rememberFor = time.Minute

// account describes a local user.
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

// find looks a login up, unchanged and then in lower case. A user that does not
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

// lookupFault is an error of the look-up; the user may exist.
func lookupFault(err error) error {
	return &fault{code: status.SystemTrouble, text: "users cannot be looked up", err: err}
}

// group returns the primary group of a uid, that of the user nobody if it has no account.
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
