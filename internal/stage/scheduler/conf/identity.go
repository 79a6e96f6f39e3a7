package conf

import (
	"fmt"
	"os"
	"os/user"
	"strconv"
	"strings"
	"syscall"
)

// Credential returns what agents run as: a user with the user's groups, or with the named
// one; nil: as this process. Only root can start agents as another user.
func Credential(userName, group string, root bool) (*syscall.Credential, error) {
	if userName == "" && group == "" {
		return nil, nil
	}
	who := &syscall.Credential{Uid: uint32(os.Geteuid()), Gid: uint32(os.Getegid())}
	if userName != "" {
		if err := asUser(who, userName); err != nil {
			return nil, err
		}
	}
	if group != "" {
		gid, err := findGroup(group)
		if err != nil {
			return nil, err
		}
		who.Gid = gid
		if userName == "" {
			who.Groups = nil
		}
	}
	if root {
		return who, nil
	}
	if int(who.Uid) != os.Geteuid() {
		return nil, fmt.Errorf("user %s: the scheduler runs as user %d; only root can start agents as somebody else", userName, os.Geteuid())
	}
	if int(who.Gid) != os.Getegid() {
		return nil, fmt.Errorf("group %s: the scheduler runs in group %d; only root can start agents in another", strconv.Itoa(int(who.Gid)), os.Getegid())
	}
	return nil, nil
}

// asUser fills in the entry of the system's user database; a number needs no entry.
func asUser(who *syscall.Credential, name string) error {
	u, err := user.Lookup(name)
	if err != nil {
		if id, ok := number(name); ok {
			u, err = user.LookupId(name)
			if err != nil {
				who.Uid = id
				return nil
			}
		}
	}
	if err != nil {
		return fmt.Errorf("unknown user %s", name)
	}
	who.Uid, _ = number(u.Uid)
	who.Gid, _ = number(u.Gid)
	ids, err := u.GroupIds()
	if err != nil {
		return fmt.Errorf("find the groups of user %s: %w", name, err)
	}
	for _, s := range ids {
		if id, ok := number(s); ok {
			who.Groups = append(who.Groups, id)
		}
	}
	return nil
}

func findGroup(name string) (uint32, error) {
	if g, err := user.LookupGroup(name); err == nil {
		if id, ok := number(g.Gid); ok {
			return id, nil
		}
	}
	if id, ok := number(name); ok {
		return id, nil
	}
	return 0, fmt.Errorf("unknown group %s", name)
}

func number(s string) (uint32, bool) {
	n, err := strconv.ParseUint(s, 10, 32)
	return uint32(n), err == nil && strings.Trim(s, "0123456789") == ""
}

// CheckIdentities returns the users, groups and priorities of scheduler.conf that agents
// cannot have; root reports whether they are started by root.
func (c *File) CheckIdentities(root bool) (errs []error) {
	for i := range c.bodies {
		b := &c.bodies[i]
		s := b.settings()
		if _, err := Credential(s.User, "", root); err != nil {
			errs = append(errs, c.bad(b.where["user"], "%v", err))
		} else if _, err := Credential(s.User, s.Group, root); err != nil {
			errs = append(errs, c.bad(b.where["group"], "%v", err))
		}
		if s.Nice < 0 && !root {
			errs = append(errs, c.bad(b.where["nice"], "nice=%d: only root can start agents before others", s.Nice))
		}
	}
	return errs
}
