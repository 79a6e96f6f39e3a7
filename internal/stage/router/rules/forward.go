package rules

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"zmailer/internal/mail/address"
	"zmailer/internal/run/config"
)

// forwards are users' own aliases, ~/.forward.
type forwards struct {
	template string // ~ is the home, %u the login; it may end in a fixed path only
	log      *slog.Logger

	mu   sync.Mutex
	said map[string]string // by path: why it was ignored last
}

// CheckForward checks a Config's Forward.
func CheckForward(template string) error {
	if template != "" && !strings.HasPrefix(template, "~/") && (!filepath.IsAbs(template) || !strings.Contains(template, "%u")) {
		return errors.New("it is no user's own file: want ~/PATH, or a path from the root with %u in it")
	}
	return nil
}

// newForwards takes the setting, which CheckForward has passed; nil: users have none.
func newForwards(template string, log *slog.Logger) *forwards {
	if template == "" {
		return nil
	}
	return &forwards{template: template, log: log, said: map[string]string{}}
}

// path returns a user's file, and the directory that must be there if it is not.
func (f *forwards) path(u User) (path, base string) {
	path = f.template
	if rest, ok := strings.CutPrefix(path, "~"); ok {
		return u.Home + strings.ReplaceAll(rest, "%u", u.Login), u.Home
	}
	fixed, _, _ := strings.Cut(path, "%u")
	return strings.ReplaceAll(path, "%u", u.Login), filepath.Dir(fixed + "x")
}

// hasHome reports whether a user is meant to have a home directory, which may yet be missing.
func hasHome(u User) bool {
	return filepath.IsAbs(u.Home) && u.Home != "/nonexistent" && u.Home != "/dev/null" && u.Home != "/"
}

// forward expands a user's .forward. done is false if his mail goes to his mailbox: he
// has none, or none that can be believed, or it is what we come from.
func (x *expansion) forward(u User, m address.Mailbox) (done bool, err error) {
	f := x.t.forwards
	if f == nil || strings.HasPrefix(f.template, "~") && !hasHome(u) {
		return false, nil
	}
	path, base := f.path(u)
	s := step{table: inForward, key: u.Login}
	if x.path.has(s) {
		x.traceStep(m, ".forward", at(u.Login, ""), again)
		return false, nil
	}
	l, err := x.t.rolls.open(x.lookups, path)
	if err != nil {
		why, err := f.failed(x.t.rolls.reach, u, path, base, err)
		if why != "" {
			x.ignored(f, u, m, path, why)
		}
		return false, err
	}
	defer l.close()
	switch {
	case l.rights.why != "":
		x.ignored(f, u, m, path, l.rights.why)
		return false, nil
	case l.rights.uid != u.UID:
		x.ignored(f, u, m, path, fmt.Sprintf("it belongs to uid %d, not to %s", l.rights.uid, u.Login))
		return false, nil
	case l.f != nil:
		x.ignored(f, u, m, path, fmt.Sprintf("it is larger than %d bytes", keptRoll))
		return false, nil
	case len(l.members) == 0:
		x.traceStep(m, ".forward", at(u.Login, path), "empty")
		return false, nil
	}
	x.traceStep(m, ".forward", at(u.Login, path), "%s", showRights(l.rights))
	err = x.apart(func() error {
		return x.members(frame{s, path, where{file: path}}, m, l, l.rights, "forward")
	})
	if own := (*ownTrouble)(nil); errors.As(err, &own) {
		x.ignored(f, u, m, path, own.Error())
		return false, nil
	}
	return true, err
}

// ownTrouble is trouble with a user's .forward, or with a file that it includes. It is
// his alone: the other recipients of the message, a list's perhaps, are not to wait until
// he mends it.
type ownTrouble struct{ *Trouble }

func (o *ownTrouble) Unwrap() error { return o.Trouble }

// ownOf attributes trouble with a file to the user, if his .forward led to it and no table
// of the system in between. A timeout of ours is attributed to no one.
func (x *expansion) ownOf(why string, err error) error {
	trouble, ok := IsTrouble(err)
	if !ok || x.ctx.Err() != nil {
		return err
	}
	own := why == "forward"
	for i := len(x.path) - 1; i >= 0 && !own; i-- {
		if kind := x.path[i].table; kind != inInclude {
			own = kind == inForward
			break
		}
	}
	if !own {
		return err
	}
	return &ownTrouble{trouble}
}

// mostApart is how many targets of one .forward are kept back until all are known.
const mostApart = 10000

// apart keeps back what do gives. If that ends in the user's own trouble nothing of it
// was given, and nothing counts as expanded; but of a .forward that gives very many it
// is everybody's.
func (x *expansion) apart(do func() error) error {
	give, given, log, logs := x.give, x.given, len(x.doneLog), x.logDone
	var kept []Target
	held := true
	release := func() error {
		for held = false; len(kept) > 0; kept = kept[1:] {
			if err := give(kept[0]); err != nil {
				return err
			}
		}
		return nil
	}
	x.logDone = true
	x.give = func(t Target) error {
		if held && len(kept) < mostApart {
			kept = append(kept, t)
			return nil
		}
		if held {
			if err := release(); err != nil {
				return err
			}
		}
		return give(t)
	}
	err := do()
	x.give, x.logDone = give, logs
	own := (*ownTrouble)(nil)
	switch {
	case errors.As(err, &own) && !held:
		err = own.Trouble
	case own != nil:
		x.given = given
		for _, id := range x.doneLog[log:] {
			delete(x.done, id)
		}
		x.doneLog = x.doneLog[:log]
	case err == nil:
		err = release()
	}
	if !logs {
		x.doneLog = nil
	}
	return err
}

// failed returns why a .forward is not used, or a *Trouble if it is unknown whether it is
// there; neither: the user has none.
func (f *forwards) failed(r reach, u User, path, base string, err error) (why string, trouble error) {
	bad := (*config.Error)(nil)
	switch {
	case absent(err):
		if _, herr := (&guard{reach: r}).walk(base); absent(herr) {
			return "", &Trouble{Why: "forward", Err: fmt.Errorf("%s: %s is not there; mount it, or give %s an alias, or set FORWARD=off", path, base, u.Login)}
		}
		return "", nil
	case errors.As(err, &bad), errors.Is(err, errNotRegular), errors.Is(err, fs.ErrPermission) && os.Geteuid() != 0:
		return err.Error(), nil
	}
	return "", troubleWith("forward", path, err)
}

// ignored logs, once, that a .forward is not used: the user finds the mail in the mailbox,
// and the postmaster the reason in the log.
func (x *expansion) ignored(f *forwards, u User, m address.Mailbox, path, why string) {
	x.traceStep(m, ".forward", at(u.Login, path), "ignored: %s", why)
	if x.trace != nil {
		return
	}
	f.mu.Lock()
	known := f.said[path] == why
	if len(f.said) >= maxRolls {
		clear(f.said)
	}
	f.said[path] = why
	f.mu.Unlock()
	if !known {
		f.log.Warn("forward-ignored", "user", u.Login, "file", path, "reason", why)
	}
}
