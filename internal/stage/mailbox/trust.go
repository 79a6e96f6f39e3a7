package mailbox

import (
	"errors"
	"fmt"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"zmailer/internal/disk/durable"
)

// What a store may be. As Postfix's strict_mailbox_ownership has it, a mailbox belongs to
// its recipient and has one name: in a directory that others write to, /var/mail with mode
// 1777, another user may have made it first. What is refused is not touched, and its
// mail waits for an operator.

// refused is a store that is not its recipient's.
func refused(name string, st *unix.Stat_t, why string) error {
	return &fault{
		code: configTrouble, text: "the mailbox does not belong to its recipient",
		err: fmt.Errorf("%s (owner uid %d, mode %o, links %d): %s", name, st.Uid, st.Mode&0o7777, st.Nlink, why),
	}
}

// owner returns the uid that a store must have: without root's privilege everything is ours.
func (m *Mailbox) owner(t target) int {
	if !m.creds.root {
		return os.Geteuid()
	}
	return t.as.uid
}

// others reports whether everybody may make names in a directory.
func others(dir *unix.Stat_t) bool { return dir.Mode&unix.S_IWOTH != 0 }

// checkFile checks an open mbox file.
func (b *mbox) checkFile(st *unix.Stat_t) error {
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return &fault{code: configTrouble, text: "the mailbox is not a regular file"}
	}
	strict := b.t.spool
	if !strict {
		var dir unix.Stat_t
		if err := unix.Fstat(b.dir, &dir); err != nil {
			return err
		}
		strict = others(&dir)
	}
	switch uid := b.m.owner(b.t); {
	case !strict:
		return nil
	case int(st.Uid) != uid:
		return refused(b.t.path, st, fmt.Sprintf("it must belong to uid %d; chown it, or move it away", uid))
	case st.Nlink > 1:
		return refused(b.t.path, st, "it has another name; remove that, or move the file away")
	}
	return nil
}

// openAbove opens the directory that a name is in, to work relative to it.
func openAbove(name string, uid int) (int, error) {
	fd, _, err := openWay(path.Dir(name), uid)
	return fd, err
}

// openWay opens a directory. What everybody may have put on the way to it, a directory
// or a symbolic link in one that all may write to, must belong to uid or root.
func openWay(dir string, uid int) (fd int, st unix.Stat_t, err error) {
	const flags = unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC
	fail := func(op string, err error) (int, unix.Stat_t, error) {
		if fd >= 0 {
			_ = unix.Close(fd) // a place, nothing that was written
		}
		return -1, st, fmt.Errorf("%s directory %s: %w", op, dir, err)
	}
	if fd, err = openat(unix.AT_FDCWD, "/", flags, 0); err == nil {
		err = unix.Fstat(fd, &st)
	}
	if err != nil {
		return fail("open", err)
	}
	rest, links := dir, 0
	for {
		var name string
		name, rest, _ = strings.Cut(strings.TrimLeft(rest, "/"), "/")
		if name == "" {
			return fd, st, nil
		}
		next, err := openat(fd, name, flags, 0)
		if err != nil {
			return fail("open", err)
		}
		var is unix.Stat_t
		if err := unix.Fstat(next, &is); err != nil {
			_ = unix.Close(next)
			return fail("stat", err)
		}
		if others(&st) && name != ".." && is.Uid != 0 && int(is.Uid) != uid {
			_ = unix.Close(next)
			_, _, _ = fail("open", unix.EPERM)
			return -1, st, refused(dir, &is, fmt.Sprintf("%s on the way to it is in a directory that every user may write to, and belongs neither to root nor to uid %d", name, uid))
		}
		switch is.Mode & unix.S_IFMT {
		case unix.S_IFDIR:
			_ = unix.Close(fd)
			fd, st = next, is
			continue
		case unix.S_IFLNK:
		default:
			_ = unix.Close(next)
			return fail("open", unix.ENOTDIR)
		}
		to, err := readLink(next)
		_ = unix.Close(next)
		if links++; err == nil && links > 40 {
			err = unix.ELOOP
		}
		if err != nil {
			return fail("open", err)
		}
		if rest = to + "/" + rest; strings.HasPrefix(to, "/") {
			_ = unix.Close(fd)
			if fd, err = openat(unix.AT_FDCWD, "/", flags, 0); err == nil {
				err = unix.Fstat(fd, &st)
			}
			if err != nil {
				return fail("open", err)
			}
		}
	}
}

// readLink returns where an open symbolic link leads.
func readLink(fd int) (string, error) {
	b := make([]byte, unix.PathMax)
	n, err := count(func() (int, error) { return unix.Readlinkat(fd, "", b) })
	if err != nil {
		return "", err
	}
	return string(b[:n]), nil
}

// openMaildir opens a Maildir's directory; strict: it must belong to uid.
func openMaildir(dir string, uid int, strict bool) (maildirFS, error) {
	fd, st, err := openWay(dir, uid)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	if strict && int(st.Uid) != uid {
		return nil, refused(dir, &st, fmt.Sprintf("it must belong to uid %d; chown it, or move it away", uid))
	}
	box, err := durable.NewOSAt(fd, dir)
	if err != nil || !others(&st) {
		return box, err
	}
	for _, sub := range []string{"tmp", "new", "cur"} {
		var is unix.Stat_t
		err := unix.Fstatat(fd, sub, &is, unix.AT_SYMLINK_NOFOLLOW)
		if err == nil && (is.Mode&unix.S_IFMT != unix.S_IFDIR || int(is.Uid) != uid) {
			_ = box.Close()
			return nil, refused(dir+"/"+sub, &is, fmt.Sprintf("it must be a directory of uid %d", uid))
		}
	}
	return box, nil
}

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
	err := m.dirs.mkdir(dir, t.dirMode())
	if errors.Is(err, unix.ENOENT) && path.Dir(dir) != dir {
		if err := m.makeDir(path.Dir(dir), t, false); err != nil {
			return err
		}
		err = m.dirs.mkdir(dir, t.dirMode())
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
			err := again(func() error { return unix.Fchownat(above, base, t.as.uid, t.as.gid, unix.AT_SYMLINK_NOFOLLOW) })
			if err == nil && t.mode != 0 {
				// Only root makes names here: it is still the directory that was made.
				err = again(func() error { return unix.Fchmodat(above, base, t.dirMode(), 0) })
			}
			return err
		}
		// The umask may have taken bits.
		return again(func() error { return unix.Fchmodat(above, base, mode, 0) })
	})
}

// mayMakeIn reports whether root may make a user's file in a directory: one that is
// root's and that not everybody writes to, like /var/mail. Elsewhere another user
// could have put something in the way.
func (m *Mailbox) mayMakeIn(dir int) bool {
	var st unix.Stat_t
	return m.creds.root && unix.Fstat(dir, &st) == nil && st.Uid == 0 && st.Mode&unix.S_IWOTH == 0
}
