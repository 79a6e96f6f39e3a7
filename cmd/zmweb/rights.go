package main

import (
	"os/user"
	"slices"

	"zmailer/internal/admin/webconf"
	"zmailer/internal/ui/web"
)

// rights say what who logs in with a password may do.
type rights struct {
	readers, writers []string // names, and groups as @adm
	all              bool     // no list: each account may do everything
	everybody        bool     // who can log in may read
	groups           func(name string) []string
}

// rightsOf returns those of WEBREADERS and WEBWRITERS. If they are empty, all accounts of a
// file have them, and none of a machine.
func rightsOf(w webconf.Settings) *rights {
	file := !w.ByPAM()
	return &rights{readers: w.Readers, writers: w.Writers, groups: groupsOf,
		everybody: file && len(w.Readers) == 0, all: file && len(w.Writers) == 0}
}

// of returns what somebody may do now.
func (r *rights) of(name string) web.Right {
	var groups []string
	if slices.ContainsFunc(slices.Concat(r.readers, r.writers), isGroup) {
		groups = r.groups(name)
	}
	in := func(list []string) bool {
		return slices.ContainsFunc(list, func(word string) bool {
			if isGroup(word) {
				return slices.Contains(groups, word[1:])
			}
			return word == name
		})
	}
	read := r.everybody || in(r.readers)
	switch {
	case in(r.writers), read && r.all:
		return web.MayWrite
	case read:
		return web.MayRead
	}
	return web.NoRight
}

func isGroup(word string) bool { return len(word) > 1 && word[0] == '@' }

// groupsOf returns the groups of a user of this machine; none of who is not one.
func groupsOf(name string) []string {
	u, err := user.Lookup(name)
	if err != nil {
		return nil
	}
	ids, err := u.GroupIds()
	if err != nil {
		return nil
	}
	var names []string
	for _, id := range ids {
		if g, err := user.LookupGroupId(id); err == nil {
			names = append(names, g.Name)
		}
	}
	return names
}
