package mailbox

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"time"

	"golang.org/x/sys/unix"

	"zmailer/internal/mail/status"
)

// mbox is one mbox file while a message is added to it.
type mbox struct {
	m    *Mailbox
	t    target
	dir  int         // its directory, for work relative to it
	base string      // its name there
	fd   int         // -1: not open
	st   unix.Stat_t // of fd, when it was locked
	dot  *dotLock
}

// toMbox adds the message to an mbox file (RFC 4155, with the quoting of mboxrd),
// behind a turn within this process, a dot lock, and an fcntl lock, in that order.
func (m *Mailbox) toMbox(ctx context.Context, t target, l *letter) error {
	ctx, cancel := context.WithTimeout(ctx, m.c.LockWait)
	defer cancel()
	leave, err := m.takeTurn(ctx, t.path)
	if err != nil {
		return err
	}
	defer leave()
	b := &mbox{m: m, t: t, dir: -1, base: path.Base(t.path), fd: -1}
	defer b.close()
	if b.dir, err = openAbove(t.path, m.owner(t)); errors.Is(err, unix.ENOENT) {
		if err := m.makeAbove(t.path, t); err != nil {
			return err
		}
		b.dir, err = openAbove(t.path, m.owner(t))
	}
	if err != nil {
		return err
	}
	if err := b.lock(ctx); err != nil {
		return err
	}
	if there, err := b.settle(l); err != nil || there {
		return err
	}
	if t.spool {
		if err := m.c.Quota.room(b.st.Size, l.size()); err != nil {
			return err
		}
	}
	if err := l.sent(placeAttrs(b.st.Size, l.now)...); err != nil {
		return err
	}
	if err := b.append(l); err != nil {
		// Crash: a torn message at the end, which the next attempt cuts off.
		if terr := ftruncate(b.fd, b.st.Size); terr != nil {
			return &standing{errors.Join(err, fmt.Errorf("cut %s back to %d bytes: %w", t.path, b.st.Size, terr))}
		}
		return err
	}
	// Crash: before this the file may be gone with its name, also one that a killed attempt
	// has made.
	if err := m.syncName(t.path, t); err != nil {
		return &standing{err}
	}
	return nil
}

// close gives the locks back: closing the file does for fcntl's.
func (b *mbox) close() {
	if b.fd >= 0 {
		_ = unix.Close(b.fd) // synced before, if it matters
	}
	b.dot.release()
	if b.dir >= 0 {
		_ = unix.Close(b.dir)
	}
}

func (b *mbox) pathError(op string, err error) error {
	return &fs.PathError{Op: op, Path: b.t.path, Err: err}
}

// lock takes the dot lock, opens the file and takes its fcntl lock. A file that was
// replaced meanwhile, as mail readers do, is opened again.
func (b *mbox) lock(ctx context.Context) error {
	err := wait(ctx, func() (ok bool, err error) {
		b.dot, ok, err = b.takeDotLock()
		return ok, err
	})
	if err != nil {
		return b.pathError("lock", err)
	}
	for {
		if err := b.open(); err != nil {
			return b.pathError("open", err)
		}
		// A lock of the open file, not of the process: it holds against other slots and
		// against programs that use plain fcntl locks.
		err := wait(ctx, func() (bool, error) {
			err := setLock(b.fd, &unix.Flock_t{Type: unix.F_WRLCK})
			if err == unix.EAGAIN || err == unix.EACCES {
				return false, nil
			}
			return err == nil, err
		})
		if err != nil {
			return b.pathError("lock", err)
		}
		if err := unix.Fstat(b.fd, &b.st); err != nil {
			return b.pathError("stat", err)
		}
		var named unix.Stat_t
		err = unix.Fstatat(b.dir, b.base, &named, unix.AT_SYMLINK_NOFOLLOW)
		if err == nil && named.Ino == b.st.Ino && named.Dev == b.st.Dev {
			return nil
		}
		if err != nil && err != unix.ENOENT {
			return b.pathError("stat", err)
		}
		_ = unix.Close(b.fd) // nothing was written
		b.fd = -1
	}
}

// open opens the file, or creates it for the user alone.
func (b *mbox) open() error {
	const flags = unix.O_RDWR | unix.O_APPEND | unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_CLOEXEC
	for {
		fd, err := openat(b.dir, b.base, flags, 0)
		if err == unix.ENOENT {
			fd, err = b.create(flags | unix.O_CREAT | unix.O_EXCL)
			if err == unix.EEXIST {
				continue
			}
			b.m.synced.forget(b.t.path)
		}
		if err == unix.EACCES && b.m.adopt(b.dir, b.base, unix.S_IFREG, b.t) {
			continue
		}
		if err != nil {
			return err
		}
		b.fd = fd
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			return err
		}
		return b.checkFile(&st)
	}
}

// create makes the file; as root for the user if only root may, as in /var/mail.
func (b *mbox) create(flags int) (int, error) {
	// Crash: an empty mbox file, which is a mailbox without messages. One of root's is given
	// to its user by the next attempt, see adopt.
	fd, err := openat(b.dir, b.base, flags, 0o600)
	if err != unix.EACCES || !b.t.spool || !b.m.mayMakeIn(b.dir) {
		return fd, err
	}
	err = b.m.creds.asRoot(b.t.as, func() (err error) {
		if fd, err = openat(b.dir, b.base, flags, 0o600); err != nil {
			return err
		}
		if err = again(func() error { return unix.Fchown(fd, b.t.as.uid, b.t.as.gid) }); err != nil {
			_ = unix.Close(fd)
		}
		return err
	})
	return fd, err
}

// append writes and syncs the message.
func (b *mbox) append(l *letter) error {
	if err := b.compose(b, l, b.st.Size, l.now); err != nil {
		return err
	}
	return b.sync()
}

func (b *mbox) sync() error {
	// Crash: the whole message, or a torn one, at the place that the history names.
	if err := fsync(b.fd); err != nil {
		return b.pathError("fsync", err)
	}
	return nil
}

// compose writes the message as it stands, or is to stand, at an offset of the file.
func (b *mbox) compose(to io.Writer, l *letter, at int64, now time.Time) error {
	w := b.m.writers.Get().(*bufio.Writer)
	defer b.m.writers.Put(w)
	w.Reset(to)
	defer w.Reset(nil)
	lead, err := b.lead(at)
	if err != nil {
		return b.pathError("read", err)
	}
	// A bufio.Writer's error stays until Flush.
	_, _ = w.WriteString(lead)
	_, _ = w.WriteString(fromLine(senderAddress(l.recipient.Group.Sender), now))
	q := fromQuoter{w: w}
	if err := l.write(&q); err != nil {
		return err
	}
	q.end()
	return w.Flush()
}

// Write implements io.Writer at the file's end.
func (b *mbox) Write(p []byte) (int, error) {
	done := 0
	for done < len(p) {
		n, err := write(b.fd, p[done:])
		if err == nil && n <= 0 {
			err = unix.EIO
		}
		if err != nil {
			return done, b.pathError("write", err)
		}
		done += n
	}
	return done, nil
}

// lead is what ends a message before ours, which begins at an offset, that does not
// end in an empty line: one that a crash tore, or that another program wrote.
func (b *mbox) lead(at int64) (string, error) {
	if at == 0 {
		return "", nil
	}
	tail := make([]byte, min(2, at))
	if _, err := pread(b.fd, tail, at-int64(len(tail))); err != nil {
		return "", err
	}
	switch {
	case string(tail) == "\n\n":
		return "", nil
	case tail[len(tail)-1] == '\n':
		return "\n", nil
	}
	return "\n\n", nil
}

// busy is RFC 3463's X.2.0: something about the mailbox, no more is known.
var busy = status.Code{Class: 4, Subject: 2, Detail: 0}
