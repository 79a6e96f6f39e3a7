package mailbox

import (
	"context"
	"errors"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"zmailer/internal/disk/dotlock"
	"zmailer/internal/run/backoff"
)

// Between two looks at a lock of another program: doubling, from and to.
const (
	firstWait = 5 * time.Millisecond
	lastWait  = 500 * time.Millisecond
)

// wait tries until it succeeds, fails, or ctx is done: then the mailbox is busy.
func wait(ctx context.Context, try func() (bool, error)) error {
	var timer *time.Timer
	for pause := firstWait; ; pause = backoff.Next(pause, firstWait, lastWait) {
		ok, err := try()
		if err != nil || ok {
			return err
		}
		if timer == nil {
			timer = time.NewTimer(pause)
			defer timer.Stop()
		} else {
			timer.Reset(pause)
		}
		select {
		case <-timer.C:
		case <-ctx.Done():
			return &fault{code: busy, text: "the mailbox is locked by another program"}
		}
	}
}

// turn is an mbox file that slots of this process write to one after the other.
type turn struct {
	free  chan struct{} // holds one value while no slot writes
	users int
}

// takeTurn waits until no other slot writes to a path.
func (m *Mailbox) takeTurn(ctx context.Context, path string) (leave func(), err error) {
	m.mu.Lock()
	t := m.boxes[path]
	if t == nil {
		t = &turn{free: make(chan struct{}, 1)}
		t.free <- struct{}{}
		m.boxes[path] = t
	}
	t.users++
	m.mu.Unlock()
	drop := func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		if t.users--; t.users == 0 {
			delete(m.boxes, path)
		}
	}
	select {
	case <-t.free:
		return func() { t.free <- struct{}{}; drop() }, nil
	case <-ctx.Done():
		drop()
		return nil, &fault{code: busy, text: "the mailbox is busy"}
	}
}

// dotLock is a held FILE.lock; nil: none could be made and none is needed.
type dotLock struct {
	b    *mbox
	ino  uint64
	root bool // made as root
}

func (b *mbox) dotName() string { return b.base + ".lock" }

// takeDotLock tries once, and once more behind a stale one. In a directory that
// neither the user nor root for the user may make files in, the fcntl lock must do.
func (b *mbox) takeDotLock() (*dotLock, bool, error) {
	l := &dotLock{b: b}
	err := l.create()
	if errors.Is(err, unix.EACCES) && b.t.spool && b.m.mayMakeIn(b.dir) {
		l.root = true
		err = l.as(l.create)
	}
	if errors.Is(err, unix.EEXIST) && l.foreign() {
		return nil, true, nil
	}
	if errors.Is(err, unix.EEXIST) {
		removed := false
		err := l.as(func() (err error) {
			removed, err = l.removeStale()
			return err
		})
		if err != nil || !removed {
			return nil, false, err
		}
		err = l.as(l.create)
		return l, err == nil, ignore(err, unix.EEXIST)
	}
	switch {
	case err == nil:
		return l, true, nil
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM), errors.Is(err, unix.EROFS), errors.Is(err, unix.ENAMETOOLONG):
		return nil, true, nil
	}
	return nil, false, err
}

// foreign reports whether the lock file was made by somebody who has no business with the
// mailbox. In a directory that everybody writes to, /var/mail with mode 1777, each user may
// make one, and the recipient could not remove it: it counts only if it is the
// recipient's or root's, and root's only if no user can have given a file of root's that name.
func (l *dotLock) foreign() bool {
	var dir, st unix.Stat_t
	if err := unix.Fstat(l.b.dir, &dir); err != nil || !others(&dir) {
		return false
	}
	if err := unix.Fstatat(l.b.dir, l.b.dotName(), &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return false // gone: the next try sees it
	}
	regular := st.Mode&unix.S_IFMT == unix.S_IFREG
	if int(st.Uid) == l.b.m.owner(l.b.t) || st.Uid == 0 && regular && st.Nlink == 1 {
		return false
	}
	l.b.m.c.Log.Warn("foreign-lock", "path", l.b.t.path+".lock", "uid", st.Uid)
	return true
}

// as works on the lock file with the ids of its maker.
func (l *dotLock) as(f func() error) error {
	if !l.root {
		return f()
	}
	return l.b.m.creds.asRoot(l.b.t.as, f)
}

// create makes the lock file with our pid and host in it. It gets its name when it is
// written, where the file system can do that: an empty lock file does not show whose it
// is.
func (l *dotLock) create() error {
	text := dotlock.Text(l.b.m.host)
	fd, err := openat(l.b.dir, ".", unix.O_WRONLY|unix.O_TMPFILE|unix.O_CLOEXEC, 0o644)
	switch {
	case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.EISDIR), errors.Is(err, unix.EINVAL):
		return l.createNamed(text)
	case err != nil:
		return err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if _, err := write(fd, text); err != nil {
		return err
	}
	// Crash: no file, or a lock whose writer is dead, which the next one removes.
	err = linkat(unix.AT_FDCWD, "/proc/self/fd/"+strconv.Itoa(fd), l.b.dir, l.b.dotName(), unix.AT_SYMLINK_FOLLOW)
	if errors.Is(err, unix.ENOENT) {
		return l.createNamed(text) // without /proc
	}
	if err == nil {
		l.ino = st.Ino
	}
	return err
}

// createNamed is create for file systems, NFS among them, whose files have a name
// from the start.
func (l *dotLock) createNamed(text []byte) error {
	// Crash: an empty lock file, which counts as another program's for a while.
	fd, err := openat(l.b.dir, l.b.dotName(), unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o644)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	err = unix.Fstat(fd, &st)
	if err == nil {
		_, err = write(fd, text)
	}
	if err != nil {
		return errors.Join(err, unlinkat(l.b.dir, l.b.dotName()))
	}
	l.ino = st.Ino
	return nil
}

// release removes the lock file if it still is the one that we made.
func (l *dotLock) release() {
	if l == nil {
		return
	}
	remove := func() error {
		var st unix.Stat_t
		if err := unix.Fstatat(l.b.dir, l.b.dotName(), &st, unix.AT_SYMLINK_NOFOLLOW); err != nil || st.Ino != l.ino {
			return err
		}
		return unlinkat(l.b.dir, l.b.dotName())
	}
	if err := l.as(remove); err != nil && err != unix.ENOENT {
		// While this process lives no other takes it for stale: our own next delivery has to.
		l.b.m.leave(l.b.t.path, l.ino)
		l.b.m.c.Log.Warn("lock-left", "path", l.b.t.path+".lock", "reason", err)
	}
}

// removeStale removes the lock file if its writer is gone. Of two that do so at once,
// one could take away the lock that the other has just made: so both lock the stale
// file itself, and look whether it still has the name.
func (l *dotLock) removeStale() (removed bool, err error) {
	fd, err := openat(l.b.dir, l.b.dotName(), unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return false, nil // gone, or not to be read: not known to be stale
	}
	defer unix.Close(fd)
	ino, stale := l.stale(fd)
	if !stale || unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) != nil {
		return false, nil
	}
	var st unix.Stat_t
	err = unix.Fstatat(l.b.dir, l.b.dotName(), &st, unix.AT_SYMLINK_NOFOLLOW)
	if err != nil || st.Ino != ino {
		return false, ignore(err, unix.ENOENT)
	}
	// Crash: the stale lock, or none.
	if err := unlinkat(l.b.dir, l.b.dotName()); err != nil {
		return false, ignore(err, unix.ENOENT)
	}
	l.b.m.leave(l.b.t.path, 0)
	l.b.m.c.Log.Warn("stale-lock", "path", l.b.t.path+".lock")
	return true, nil
}

// leave remembers a lock file of ours that could not be removed, by inode number; 0:
// there is none any more.
func (m *Mailbox) leave(path string, ino uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if ino == 0 {
		delete(m.left, path)
		return
	}
	if m.left == nil {
		m.left = map[string]uint64{}
	}
	m.left[path] = ino
}

// hasLeft reports whether a lock file is one of ours that could not be removed. The caller has the
// path's turn, so no delivery of this process holds it.
func (m *Mailbox) hasLeft(path string, ino uint64) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.left[path] == ino
}

func ignore(err, this error) error {
	if errors.Is(err, this) {
		return nil
	}
	return err
}

// stale looks at the open lock file.
func (l *dotLock) stale(fd int) (ino uint64, stale bool) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return 0, false
	}
	if l.b.m.hasLeft(l.b.t.path, st.Ino) {
		return st.Ino, true
	}
	text := make([]byte, dotlock.Longest)
	n, err := read(fd, text)
	if err != nil {
		n = 0
	}
	return st.Ino, dotlock.Stale(text[:n], time.Unix(st.Mtim.Unix()), l.b.m.c.Now(), l.b.m.host)
}
