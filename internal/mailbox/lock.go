package mailbox

import (
	"context"
	"errors"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// A dot lock whose writer is dead is stale at once; one of which that cannot be
// said after foreignLock; any after oldLock, for no delivery takes so long and pids
// are used again.
const (
	foreignLock = 5 * time.Minute
	oldLock     = time.Hour
)

// Between two looks at a lock of another program: doubling, from and to.
const (
	firstWait = 5 * time.Millisecond
	lastWait  = 500 * time.Millisecond
)

// wait tries until it succeeds, fails, or ctx is done: then the mailbox is busy.
func wait(ctx context.Context, try func() (bool, error)) error {
	var timer *time.Timer
	for pause := firstWait; ; pause = min(2*pause, lastWait) {
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
	free  chan struct{} // holds one value while nobody writes
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

// as works on the lock file as whoever makes it.
func (l *dotLock) as(f func() error) error {
	if !l.root {
		return f()
	}
	return l.b.m.creds.asRoot(l.b.t.as, f)
}

// create makes the lock file with our pid and host in it.
func (l *dotLock) create() error {
	// Crash: a lock whose writer is dead, which the next one removes.
	fd, err := unix.Openat(l.b.dir, l.b.dotName(), unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o644)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	err = unix.Fstat(fd, &st)
	if err == nil {
		_, err = unix.Write(fd, []byte(strconv.Itoa(os.Getpid())+" "+l.b.m.host+"\n"))
	}
	if err != nil {
		return errors.Join(err, unix.Unlinkat(l.b.dir, l.b.dotName(), 0))
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
		return unix.Unlinkat(l.b.dir, l.b.dotName(), 0)
	}
	if err := l.as(remove); err != nil && err != unix.ENOENT {
		l.b.m.c.Log.Warn("lock-left", "path", l.b.t.path+".lock", "reason", err)
	}
}

// removeStale removes the lock file if its writer is gone. Of two that do so at
// once, one could take away the lock that the other has just made: so the file is
// renamed first, looked at, and given back if it is not the one that was stale.
func (l *dotLock) removeStale() (removed bool, err error) {
	ino, stale := l.stale()
	if !stale {
		return false, nil
	}
	aside := l.b.dotName() + "." + strconv.Itoa(os.Getpid())
	if err := unix.Renameat(l.b.dir, l.b.dotName(), l.b.dir, aside); err != nil {
		return false, ignore(err, unix.ENOENT)
	}
	var st unix.Stat_t
	if err := unix.Fstatat(l.b.dir, aside, &st, unix.AT_SYMLINK_NOFOLLOW); err == nil && st.Ino != ino {
		if err := unix.Linkat(l.b.dir, aside, l.b.dir, l.b.dotName(), 0); ignore(err, unix.EEXIST) != nil {
			return false, err
		}
	} else {
		removed = true
		l.b.m.c.Log.Warn("stale-lock", "path", l.b.t.path+".lock")
	}
	// Crash: FILE.lock.PID, which is nobody's lock.
	return removed, ignore(unix.Unlinkat(l.b.dir, aside, 0), unix.ENOENT)
}

func ignore(err, this error) error {
	if errors.Is(err, this) {
		return nil
	}
	return err
}

// stale looks at the lock file.
func (l *dotLock) stale() (ino uint64, stale bool) {
	fd, err := unix.Openat(l.b.dir, l.b.dotName(), unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, false
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return 0, false
	}
	age := l.b.m.c.Now().Sub(time.Unix(st.Mtim.Unix()))
	if age > oldLock {
		return st.Ino, true
	}
	content := make([]byte, 300)
	n, err := unix.Read(fd, content)
	if err != nil {
		n = 0
	}
	f := strings.Fields(string(content[:n]))
	if len(f) == 2 && f[1] == l.b.m.host {
		if pid, err := strconv.Atoi(f[0]); err == nil && pid > 0 {
			return st.Ino, unix.Kill(pid, 0) == unix.ESRCH
		}
	}
	return st.Ino, age > foreignLock
}
