package rules

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"zmailer/internal/mail/address"
	"zmailer/internal/run/config"
)

// Names that come with a list.
const (
	ownerPrefix   = "owner-"
	ownerSuffix   = "-owner"
	requestSuffix = "-request"
)

// verpTag parts the owner of a list and the member in a sender that names both.
const verpTag = "+"

// lookForLists reports whether the directory lists has come. One that was there is never
// believed gone: see listFile.
func (t *Tables) lookForLists() (changed bool) {
	if t.listDir == "" || t.lists != "" {
		return false
	}
	if _, err := os.Stat(t.listDir); absent(err) {
		return false
	}
	t.lists = t.listDir
	return true
}

// isListName reports whether a name may be the name of a list: no other file of the directory, and
// nothing that an editor leaves there.
func isListName(s string) bool {
	return isLogin(s) && s[len(s)-1] != '~' && s[0] != '#' && len(s) <= 255
}

// listFile finds the file of a list by its name, as written or else in lower case.
func (t *Tables) listFile(name string) (path string, ok bool, err error) {
	for _, n := range []string{name, strings.ToLower(name)} {
		if !isListName(n) {
			continue
		}
		path = filepath.Join(t.lists, n)
		switch info, err := os.Stat(path); {
		case err == nil && info.IsDir():
		case err == nil:
			return path, true, nil
		case !absent(err):
			return "", false, troubleWith("lists", path, err)
		}
	}
	// A directory that is being replaced, or that is not mounted, says nothing of a list.
	if _, err := os.Stat(t.lists); err != nil {
		return "", false, &Trouble{Why: "lists", Err: fmt.Errorf("%s was there and cannot be looked into now: %w; put it back, an empty one if there are no lists any more", t.lists, err)}
	}
	return "", false, nil
}

// list resolves a name by lists/: a list's own, or one that comes with it. at is what follows
// the names of the domain's lists: "" or, in a virtual domain, @domain.
func (x *expansion) list(m address.Mailbox, local, at, domain string) (done, looped bool, err error) {
	if x.t.lists == "" {
		return false, false, nil
	}
	path, ok, err := x.t.listFile(local + at)
	if err != nil {
		return false, false, err
	}
	if ok {
		return x.listMembers(m, path, at)
	}
	if of, is := listOf(local); is {
		if path, ok, err = x.t.listFile(of + at); err != nil {
			return false, false, err
		}
	}
	if !ok {
		x.traceStep(m, "lists", found{}, noEntry)
		return false, false, nil
	}
	return x.listOwner(m, path, at)
}

// listOf returns the name of the list that a name comes with.
func listOf(local string) (string, bool) {
	lower := strings.ToLower(local)
	switch n := len(lower); {
	case strings.HasPrefix(lower, ownerPrefix):
		return local[len(ownerPrefix):], true
	case strings.HasSuffix(lower, ownerSuffix):
		return local[:n-len(ownerSuffix)], true
	case strings.HasSuffix(lower, requestSuffix):
		return local[:n-len(requestSuffix)], true
	}
	return "", false
}

func (x *expansion) listMembers(m address.Mailbox, path, domain string) (done, looped bool, err error) {
	s := step{table: inList, key: path}
	if x.path.has(s) {
		x.traceStep(m, "lists", at(filepath.Base(path), ""), again)
		return false, true, nil
	}
	if x.brief {
		return true, false, x.somebody(m)
	}
	l, err := x.t.rolls.open(x.lookups, path)
	if err != nil {
		return false, false, troubleWith("lists", path, err)
	}
	defer l.close()
	owner := ownerOf(strings.TrimSuffix(filepath.Base(path), domain), m, x.t.hostname)
	if x.trace != nil {
		with := ""
		if l.verp {
			with = " with the member's address in it (VERP)"
		}
		x.traceStep(m, "lists", at(filepath.Base(path), path), "list; mail to members comes from %s%s; %s", owner, with, showRights(l.rights))
	}
	return true, false, x.owned(owner, l.verp, func() error {
		return x.members(frame{s, m.String(), where{file: path}}, m, l, l.rights, "lists")
	})
}

// ownerOf returns the address of a list's owner, in the domain that the list was written
// to in.
func ownerOf(name string, m address.Mailbox, hostname string) string {
	return qualified(address.Mailbox{Local: ownerPrefix + name, Domain: m.Domain}, hostname).String()
}

// owned does what gives the members of a list: reports on them go to its owner, but
// of a report there are none.
func (x *expansion) owned(owner string, verp bool, do func() error) error {
	if x.report {
		return do()
	}
	before, named := x.owner, x.verp
	x.owner, x.verp = owner, verp
	err := do()
	x.owner, x.verp = before, named
	return err
}

// listOwner resolves the owner of a list: the alias owner-NAME, whom the file belongs
// to, the postmaster.
func (x *expansion) listOwner(m address.Mailbox, path, domain string) (done, looped bool, err error) {
	s := step{table: inOwner, key: path}
	if x.path.has(s) {
		x.traceStep(m, "lists", at(filepath.Base(path), ""), again)
		return false, true, nil
	}
	info, err := os.Stat(path)
	if err != nil {
		return false, false, troubleWith("lists", path, err)
	}
	owner := address.Mailbox{Local: ownerPrefix + strings.TrimSuffix(filepath.Base(path), domain), Domain: strings.TrimPrefix(domain, "@")}
	// By way of the aliases; that there is none leads back here, and on.
	list := []address.Mailbox{owner}
	u, ok, err := x.t.passwd.LookupUID(sign(info).uid)
	if err != nil {
		return false, false, &Trouble{Why: "users", Err: err}
	}
	if ok {
		list = append(list, address.Mailbox{Local: u.Login})
	}
	list = append(list, address.Mailbox{Local: "postmaster"})
	done, err = x.first(s, m, "lists", at(filepath.Base(path), path), list...)
	return done, false, err
}

// checkList reads a file of lists/ whole. Its error is a *config.Error.
func (t *Tables) checkList(ctx context.Context, name string) error {
	path := filepath.Join(t.lists, name)
	if !isListName(name) {
		return nil // no mail gets there
	}
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		return nil
	}
	if lower := strings.ToLower(name); lower != name {
		return &config.Error{File: path, Reason: fmt.Sprintf("upper case in the name: most mail is addressed to %s; rename it", lower)}
	}
	if i := strings.LastIndexByte(name, '@'); i >= 0 {
		class, _, err := t.classOf(lookups{ctx: ctx}, name[i+1:])
		if err == nil && class != ClassVirtualAlias && class != ClassVirtualMailbox {
			return &config.Error{File: path, Reason: fmt.Sprintf("%s is no virtual domain; the lists of local domains have names without it", name[i+1:])}
		}
	}
	l, err := t.rolls.open(lookups{ctx: ctx}, path)
	if err == nil {
		defer l.close()
		err = l.each(ctx, func(v *member) error {
			if acts(&v.Value) && l.rights.uid == Nobody {
				return &config.Error{File: path, Line: v.line, Reason: fmt.Sprintf("%s is refused: %s", v.Text, l.rights.why)}
			}
			return nil
		})
	}
	if bad := (*config.Error)(nil); err == nil || errors.As(err, &bad) {
		return err
	}
	return &config.Error{File: path, Reason: "cannot be read", Err: err}
}
