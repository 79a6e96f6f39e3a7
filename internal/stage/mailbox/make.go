package mailbox

import (
	"errors"
	"fmt"
	"path"

	"golang.org/x/sys/unix"
)

// makeStore makes a Maildir's directory and those above it, as the user and for the
// user alone. A home directory is never made: it may be a disk that is not there.
func (m *Mailbox) makeStore(dir string, t target) error {
	return m.makeDir(dir, t, true)
}

// makeAbove makes the directories above an mbox file.
func (m *Mailbox) makeAbove(file string, t target) error {
	return m.makeDir(path.Dir(file), t, false)
}

func (m *Mailbox) makeDir(dir string, t target, users bool) error {
	if dir == path.Clean(t.home) {
		return &fault{code: configTrouble, text: "the home directory is missing", err: unix.ENOENT}
	}
	err := m.dirs.mkdir(dir)
	if errors.Is(err, unix.ENOENT) && path.Dir(dir) != dir {
		if err := m.makeDir(path.Dir(dir), t, false); err != nil {
			return err
		}
		err = m.dirs.mkdir(dir)
	}
	if errors.Is(err, unix.EACCES) && t.spool {
		err = m.makeInSpool(dir, t, users)
	}
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("make directory %s: %w", dir, err)
	}
	// Crash: a directory without a name on the disk, until syncName.
	m.synced.forget(dir)
	return nil
}

// makeInSpool makes a directory as root where only root may: the user's own, or one
// that every user's will be in.
func (m *Mailbox) makeInSpool(dir string, t target, users bool) error {
	above, err := openAbove(dir, m.owner(t))
	if err != nil {
		return err
	}
	defer unix.Close(above)
	if !m.mayMakeIn(above) {
		return unix.EACCES
	}
	base := path.Base(dir)
	mode := uint32(0o755)
	if users {
		mode = 0o700
	}
	return m.creds.asRoot(t.as, func() error {
		// Crash: an empty directory of root's, which openMade gives to its user.
		if err := mkdirat(above, base, mode); err != nil {
			return err
		}
		if users {
			return again(func() error { return unix.Fchownat(above, base, t.as.uid, t.as.gid, unix.AT_SYMLINK_NOFOLLOW) })
		}
		// The umask may have taken bits.
		return again(func() error { return unix.Fchmodat(above, base, mode, 0) })
	})
}

// mayMakeIn tells whether root may make a user's file in a directory: one that is
// root's and that not everybody writes to, like /var/mail. Elsewhere another user
// could have put something in the way.
func (m *Mailbox) mayMakeIn(dir int) bool {
	var st unix.Stat_t
	return m.creds.root && unix.Fstat(dir, &st) == nil && st.Uid == 0 && st.Mode&unix.S_IWOTH == 0
}
