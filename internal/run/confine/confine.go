// Package confine has a daemon keep no more rights than its work needs: it becomes the
// user of the daemons, gives up capabilities, and has the kernel hold it to its own
// directories (Landlock). What each program may do is in one table, profiles.go, which
// docs/privileges.md prints. It owns nothing on disk.
//
// Nothing is done unless zmailer.conf names a user (DAEMONUSER) or wants it (CONFINE=yes):
// a postoffice of an ordinary user, or of root alone, works as before.
//
// Diagnostics: Enter's errors mean that the daemon must not go on: it would have rights
// that it was to give up. ErrUser and ErrOwner are mistakes of the configuration, which
// they name the remedy. A kernel without Landlock is no error; Report says so.
package confine

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
	"kernel.org/pub/linux/libs/security/libcap/cap"

	"zmailer/internal/run/config"
)

var (
	// ErrUser means that DAEMONUSER names no usable user.
	ErrUser = errors.New("no user to run as")
	// ErrOwner means that the postoffice is not that user's.
	ErrOwner = errors.New("the postoffice belongs to somebody else")
)

// Plan is a program's sandbox profile in a postoffice, and whether it is to be entered.
type Plan struct {
	Program string
	Profile Profile
	User    string   // DAEMONUSER; "": as we are
	Mode    string   // CONFINE: auto, yes or no
	Office  string   // the postoffice
	Config  string   // the directory of zmailer.conf; "": none
	Beside  []string // directories elsewhere that may be written to, CONFINEPATHS
	Socket  bool     // it makes a socket in the postoffice itself, METRICS
}

// PlanFor returns the plan of a program by its name.
func PlanFor(program string, c *config.Config) Plan {
	// The stage reports errors in METRICS.
	place, _ := c.Metrics(program)
	return Plan{
		Program: program, Socket: place == "unix", Profile: profiles()[program],
		User: c.String("DAEMONUSER", ""), Mode: c.String("CONFINE", "auto"),
		Office: c.PostOffice(), Config: c.Dir, Beside: c.List("CONFINEPATHS"),
	}
}

// Enter has a program enter its sandbox, if it has a profile, and logs that.
func Enter(program string, c *config.Config, log *slog.Logger) error {
	p := PlanFor(program, c)
	if !p.Applies() {
		return nil
	}
	r, err := p.Enter()
	if errors.Is(err, ErrUser) || errors.Is(err, ErrOwner) {
		return c.Invalid("DAEMONUSER", "cannot be used", err)
	}
	if err != nil {
		return err
	}
	log.Info("confined", "user", r.User, "capabilities", r.Capabilities, "landlock", r.Landlock)
	return nil
}

// AsOwner has f work in a directory as its owner, if root calls: what f makes there is not root's, and
// the owner, who can rename what is in it, gains nothing. With an error this process may have the
// wrong rights and is to end.
func AsOwner(dir string, f func()) error {
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil || os.Geteuid() != 0 || st.Uid == 0 {
		f() // it meets the trouble, if any, itself
		return nil
	}
	group := os.Getegid()
	if err := syscall.Setegid(int(st.Gid)); err != nil {
		return os.NewSyscallError("setegid", err)
	}
	err := os.NewSyscallError("seteuid", syscall.Seteuid(int(st.Uid)))
	if err == nil {
		f()
		err = os.NewSyscallError("seteuid", syscall.Seteuid(0))
	}
	return errors.Join(err, os.NewSyscallError("setegid", syscall.Setegid(group)))
}

// Holds reports whether this process has what the profile keeps, and is to give up the rest: a
// program of an ordinary user has nothing that another process could keep for it.
func (p Plan) Holds() (bool, error) {
	held, err := p.held()
	return len(held) > 0 && len(held) == len(p.Profile.Caps), err
}

// HoldsAny is Holds for a part of what the profile keeps.
func (p Plan) HoldsAny() (bool, error) {
	held, err := p.held()
	return len(held) > 0, err
}

func (p Plan) held() (held []cap.Value, err error) {
	a, err := p.Account()
	if a == nil || err != nil {
		return nil, err
	}
	for _, v := range p.Profile.Caps {
		has, err := cap.GetProc().GetFlag(cap.Effective, v)
		if err != nil {
			return nil, err
		}
		if has {
			held = append(held, v)
		}
	}
	return held, nil
}

// Exempt reports whether an ordinary user's program has no sandbox: it starts or is what needs
// other users' rights.
func (p Plan) Exempt() bool {
	a, err := p.Account()
	return err == nil && a == nil && (p.Profile.Free || slices.Contains(p.Profile.Write, "."))
}

// Report is what Enter has done, for the log.
type Report struct {
	User         string // whom the process runs as; "": as it was started
	Capabilities string // that it has now, as cap_to_text(3) writes them; "=": none
	Landlock     string // "abi 6", or why it does not confine us
}

// Account is a user of the system.
type Account struct {
	Name     string
	UID, GID int
	Groups   []int
}

// Account looks up DAEMONUSER. nil without an error: no user is named, or we are an
// ordinary user, whose postoffice is served as his.
func (p Plan) Account() (*Account, error) {
	if p.User == "" {
		return nil, nil
	}
	u, err := user.Lookup(p.User)
	if err != nil {
		return nil, fmt.Errorf("%w: %w; create it, for example: useradd --system --home-dir /nonexistent --shell /usr/sbin/nologin %s", ErrUser, err, p.User)
	}
	a := &Account{Name: p.User}
	a.UID, err = strconv.Atoi(u.Uid)
	if err == nil {
		a.GID, err = strconv.Atoi(u.Gid)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: DAEMONUSER=%s: %w", ErrUser, p.User, err)
	}
	if a.UID == 0 {
		return nil, fmt.Errorf("%w: DAEMONUSER=%s is root; name another user, such as nobody", ErrUser, p.User)
	}
	ids, err := u.GroupIds()
	if err != nil {
		return nil, fmt.Errorf("%w: groups of %s: %w", ErrUser, p.User, err)
	}
	for _, id := range ids {
		if n, err := strconv.Atoi(id); err == nil {
			a.Groups = append(a.Groups, n)
		}
	}
	if e := os.Geteuid(); e != 0 && e != a.UID {
		return nil, nil
	}
	return a, nil
}

// Check reports whether DAEMONUSER exists and the postoffice is that user's, if there is one.
// Its errors are *config.Error.
func Check(c *config.Config) error {
	p := PlanFor("smtpserver", c)
	a, err := p.Account()
	if err == nil && a != nil {
		err = p.checkOwner(a)
	}
	if err != nil {
		return c.Invalid("DAEMONUSER", "cannot be used", err)
	}
	return nil
}

// BecomeDaemon has this process become the user that the daemons become, if root has started
// it and there is such a user, and gives its capabilities up: what it reads afterwards, they can
// read, too.
func BecomeDaemon(c *config.Config) error {
	a, err := PlanFor("smtpserver", c).Account()
	if err != nil || a == nil {
		return err
	}
	if os.Geteuid() != 0 {
		return keepOnly(nil)
	}
	err = errors.Join(syscall.Setgroups(a.Groups), syscall.Setgid(a.GID))
	if err == nil {
		err = syscall.Setuid(a.UID)
	}
	if err != nil {
		return fmt.Errorf("become %s: %w", a.Name, err)
	}
	return nil
}

// GiveUp gives up all capabilities, in a program that has no profile.
func GiveUp() error { return keepOnly(nil) }

// Applies reports whether Enter has anything to do.
func (p Plan) Applies() bool {
	a, err := p.Account()
	return a != nil || err != nil || p.Mode == "yes"
}

// Enter gives up what the program does not need. It holds for all threads, and for
// whatever the program starts from now on.
func (p Plan) Enter() (Report, error) {
	a, err := p.Account()
	if err != nil {
		return Report{}, err
	}
	r := Report{Landlock: "off"}
	if a != nil {
		if err := p.checkOwner(a); err != nil {
			return Report{}, err
		}
		if err := p.drop(a); err != nil {
			return Report{}, fmt.Errorf("drop privileges: %w", err)
		}
		r.User = a.Name
		if p.Profile.Root {
			r.User = "root"
		}
	}
	r.Capabilities = capabilities()
	if p.Profile.Free || p.Mode == "no" || a == nil && p.Mode != "yes" {
		return r, nil
	}
	if r.Landlock, err = p.restrict(); err != nil {
		return Report{}, fmt.Errorf("confine by Landlock: %w", err)
	}
	return r, nil
}

// checkOwner reports whether the postoffice is the user's: he could do nothing in another
// one, and some of it would be seen late.
func (p Plan) checkOwner(a *Account) error {
	for _, name := range []string{".", "public", "router", "queue", "transport"} {
		path := filepath.Join(p.Office, name)
		info, err := os.Stat(path)
		if errors.Is(err, os.ErrNotExist) {
			continue // opening the postoffice reports the missing directory
		}
		if err != nil {
			return fmt.Errorf("look at the postoffice: %w", err)
		}
		if st, ok := info.Sys().(*syscall.Stat_t); ok && int(st.Uid) != a.UID {
			return fmt.Errorf("%w: %s belongs to uid %d, not to %s; run zmctl init as root, which changes the owner", ErrOwner, path, st.Uid, a.Name)
		}
	}
	return nil
}

// below returns the directories of the postoffice that a list of names selects: a * at
// the end for all that begin so.
func (p Plan) below(names []string) (paths []string) {
	for _, n := range names {
		if before, ok := strings.CutSuffix(n, "*"); ok {
			list, _ := filepath.Glob(filepath.Join(p.Office, before+"*")) // the pattern is right
			paths = append(paths, list...)
			continue
		}
		paths = append(paths, filepath.Join(p.Office, n))
	}
	return paths
}
