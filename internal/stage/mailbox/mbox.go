package mailbox

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"zmailer/internal/mail/status"
	"zmailer/internal/workspec"
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
func (m *Mailbox) toMbox(ctx context.Context, t target, l *message) error {
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
		if err := m.quotaOf(&t).room(b.st.Size, l.size()); err != nil {
			return err
		}
	}
	if err := l.sent(placeAttrs(b.st.Size, l.now)...); err != nil {
		return err
	}
	if err := b.append(l); err != nil {
		// Crash: a torn message at the end, which the next attempt cuts off.
		if terr := ftruncate(b.fd, b.st.Size); terr != nil {
			return &uncertain{errors.Join(err, fmt.Errorf("cut %s back to %d bytes: %w", t.path, b.st.Size, terr))}
		}
		return err
	}
	// Crash: before this the file may be gone with its name, also one that a killed attempt
	// has made.
	if err := m.syncName(t.path, t); err != nil {
		return &uncertain{err}
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
	if err == nil {
		return b.withMode(fd)
	}
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
	if err != nil {
		return fd, err
	}
	return b.withMode(fd)
}

// withMode gives a new file the mode of its mailbox, whatever the umask.
// Crash: a file for its user alone.
func (b *mbox) withMode(fd int) (int, error) {
	if b.t.mode == 0 {
		return fd, nil
	}
	if err := again(func() error { return unix.Fchmod(fd, b.t.mode) }); err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// append writes and syncs the message.
func (b *mbox) append(l *message) error {
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

// compose writes the message in the form that it has at an offset of the file.
func (b *mbox) compose(to io.Writer, l *message, at int64, now time.Time) error {
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

// lead returns what ends a message before ours, which begins at an offset, that does not
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

// Keys of the history's "sent" that say where a message was about to be written: the
// offset in the mbox, and the seconds in its From line. With the message itself, which
// is still there, they give every byte that is to be found.
const (
	keyAt   = "at"
	keyDate = "date"
)

func placeAttrs(at int64, date time.Time) []workspec.Attr {
	return []workspec.Attr{
		{Key: keyAt, Value: strconv.FormatInt(at, 10)},
		{Key: keyDate, Value: strconv.FormatInt(date.Unix(), 10)},
	}
}

// placeOf reads what placeAttrs wrote; false: they are not about an mbox.
func placeOf(e *workspec.Event) (at int64, date time.Time, ok bool) {
	at, err1 := strconv.ParseInt(e.Get(keyAt), 10, 64)
	seconds, err2 := strconv.ParseInt(e.Get(keyDate), 10, 64)
	return at, time.Unix(seconds, 0), err1 == nil && err2 == nil && at >= 0
}

// settle finds out whether an agent that died has delivered the message: whole, a part
// of it, which is cut off, or nothing. It is called with the file locked.
func (b *mbox) settle(l *message) (there bool, err error) {
	if l.recipient.Sent == nil {
		return false, nil
	}
	at, date, ok := placeOf(l.recipient.Sent)
	if !ok || at > b.st.Size {
		return false, l.inDoubt() // its reader has made the file shorter
	}
	c := &comparison{b: b, at: at}
	err = b.compose(c, l, at, date)
	switch {
	case errors.Is(err, errDiffers):
		return false, l.inDoubt() // its reader has written the file anew
	case errors.Is(err, errEnds):
		// Crash: the next attempt compares the rest of the part.
		if err := ftruncate(b.fd, at); err != nil {
			return false, fmt.Errorf("cut %s back to %d bytes: %w", b.t.path, at, err)
		}
		b.st.Size = at
		return false, nil
	case err != nil:
		return false, err
	}
	// The attempt before may have made the file.
	if err := errors.Join(b.sync(), b.m.syncName(b.t.path, b.t)); err != nil {
		return false, &uncertain{err}
	}
	return true, nil
}

// What a comparison ends with.
var (
	errDiffers = errors.New("content mismatch")
	errEnds    = errors.New("the file ends before the message")
)

// comparison is written to, and compares with the file from at on.
type comparison struct {
	b  *mbox
	at int64
}

// Write implements io.Writer.
func (c *comparison) Write(p []byte) (int, error) {
	have := make([]byte, len(p))
	done := 0
	for done < len(have) {
		n, err := pread(c.b.fd, have[done:], c.at+int64(done))
		if err != nil {
			return 0, c.b.pathError("read", err)
		}
		if n == 0 {
			break
		}
		done += n
	}
	switch {
	case !bytes.Equal(have[:done], p[:done]):
		return 0, errDiffers
	case done < len(p):
		return 0, errEnds
	}
	c.at += int64(done)
	return done, nil
}
