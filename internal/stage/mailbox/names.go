package mailbox

import (
	"errors"
	"io/fs"
	"path"
	"sync"

	"golang.org/x/sys/unix"
)

// directories is what a store's directories are made and made durable with.
type directories interface {
	// mkdir makes a directory with a mode, by default for its user alone.
	mkdir(dir string, mode uint32) error
	// stat identifies what a name leads to.
	stat(name string) (fileID, error)
	// makeable reports whether an agent could have made a name in a directory, and
	// whether it could as root alone.
	makeable(dir string, t target) (ok, asRoot bool)
	// sync makes the names in the directory above a name durable.
	sync(name string, t target, asRoot bool) error
}

// fileID distinguishes one file or directory from another under the same name.
type fileID struct{ dev, ino uint64 }

// durableNames are the names that this process has made durable.
type durableNames struct {
	mu    sync.Mutex
	names map[string]fileID
}

// rememberedNames bounds durableNames: a forgotten one is made durable again.
const rememberedNames = 10000

func (d *durableNames) known(name string, id fileID) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.names[name] == id
}

func (d *durableNames) note(name string, id fileID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.names == nil || len(d.names) >= rememberedNames {
		d.names = map[string]fileID{}
	}
	d.names[name] = id
}

// forget is called when a name was made: its number may be that of an earlier file.
func (d *durableNames) forget(name string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.names, name)
}

// syncName makes the name of a store durable, and the names of those directories above it
// that an agent could have made. One that was there already may be of an agent that was
// killed before it could do this, so each process does it once for each store, before the
// first recipient's tag.
func (m *Mailbox) syncName(name string, t target) error {
	id, err := m.dirs.stat(name)
	if err != nil {
		return err
	}
	type entry struct {
		name string
		id   fileID
	}
	var done []entry
	for !m.synced.known(name, id) {
		dir := path.Dir(name)
		above, err := m.dirs.stat(dir)
		if err != nil {
			return err
		}
		ok, asRoot := m.dirs.makeable(dir, t)
		if dir == name || above.dev != id.dev || !ok {
			break
		}
		// Crash: before this a power loss may take the store with the message in it.
		if err := m.dirs.sync(name, t, asRoot); err != nil {
			return err
		}
		done = append(done, entry{name, id})
		if t.home != "" && dir == path.Clean(t.home) {
			break // a home directory is never made
		}
		name, id = dir, above
	}
	// Not before those above are durable too: another delivery may be waiting to know.
	for _, e := range done {
		m.synced.note(e.name, e.id)
	}
	return nil
}

// realDirectories is the machine's file system, used with the rights of the user.
type realDirectories struct{ m *Mailbox }

func (r realDirectories) mkdir(dir string, mode uint32) error {
	err := mkdirat(unix.AT_FDCWD, dir, 0o700)
	if err != nil || mode == 0o700 {
		return err
	}
	// The umask would take bits. Crash: a directory for its user alone.
	fd, err := openat(unix.AT_FDCWD, dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return again(func() error { return unix.Fchmod(fd, mode) })
}

func (r realDirectories) stat(name string) (fileID, error) {
	var st unix.Stat_t
	if err := again(func() error { return unix.Stat(name, &st) }); err != nil {
		return fileID{}, &fs.PathError{Op: "stat", Path: name, Err: err}
	}
	return fileID{uint64(st.Dev), st.Ino}, nil
}

func (r realDirectories) makeable(dir string, t target) (ok, asRoot bool) {
	if again(func() error { return unix.Faccessat(unix.AT_FDCWD, dir, unix.W_OK, unix.AT_EACCESS) }) == nil {
		return true, false
	}
	if !t.spool {
		return false, false
	}
	fd, err := openat(unix.AT_FDCWD, dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return false, false
	}
	defer unix.Close(fd)
	ok = r.m.mayMakeIn(fd)
	return ok, ok
}

func (r realDirectories) sync(name string, t target, asRoot bool) error {
	err := syncDirectory(path.Dir(name))
	if asRoot && errors.Is(err, unix.EACCES) {
		err = r.m.creds.asRoot(t.as, func() error { return syncDirectory(path.Dir(name)) })
	}
	if errors.Is(err, unix.EACCES) {
		// The user may make names in a directory that he may not read.
		err = syncAround(name)
	}
	return err
}

// syncDirectory is fsync(2) of a directory.
func syncDirectory(dir string) error {
	fd, err := openat(unix.AT_FDCWD, dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &fs.PathError{Op: "open", Path: dir, Err: err}
	}
	defer unix.Close(fd)
	if err := fsync(fd); err != nil {
		return &fs.PathError{Op: "fsync", Path: dir, Err: err}
	}
	return nil
}

// syncAround syncs the whole file system that a file is in.
func syncAround(name string) error {
	fd, err := openat(unix.AT_FDCWD, name, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return &fs.PathError{Op: "open", Path: name, Err: err}
	}
	defer unix.Close(fd)
	if err := again(func() error { return unix.Syncfs(fd) }); err != nil {
		return &fs.PathError{Op: "syncfs", Path: name, Err: err}
	}
	return nil
}

// adopt gives a new store to its user that a killed agent, which was root, has left as
// root's: empty, closed to all others, and in a directory where only root makes names. It
// reports whether it did.
func (m *Mailbox) adopt(above int, base string, kind uint32, t target) bool {
	if !t.spool || t.as.uid == 0 || !m.mayMakeIn(above) {
		return false
	}
	adopted := false
	err := m.creds.asRoot(t.as, func() error {
		mode := uint32(0o600)
		flags := unix.O_RDONLY | unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_CLOEXEC
		if kind == unix.S_IFDIR {
			mode, flags = 0o700, flags|unix.O_DIRECTORY
		}
		fd, err := openat(above, base, flags, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		var st unix.Stat_t
		if err := again(func() error { return unix.Fstat(fd, &st) }); err != nil {
			return err
		}
		if st.Uid != 0 || st.Mode != kind|mode || kind == unix.S_IFREG && (st.Size != 0 || st.Nlink != 1) {
			return nil
		}
		if kind == unix.S_IFDIR {
			b := make([]byte, 4096)
			n, err := count(func() (int, error) { return unix.Getdents(fd, b) })
			if _, _, names := unix.ParseDirent(b[:max(n, 0)], -1, nil); err != nil || len(names) > 0 {
				return err
			}
		}
		adopted = true
		// Crash: root's as before, or the user's.
		return again(func() error { return unix.Fchown(fd, t.as.uid, t.as.gid) })
	})
	return adopted && err == nil
}
