package cutfs

import (
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"zmailer/internal/disk/durable"
)

func pathError(op, name string, err error) error {
	if err == nil {
		return nil
	}
	return &fs.PathError{Op: op, Path: name, Err: err}
}

func linkError(op, oldname, newname string, err error) error {
	if err == nil {
		return nil
	}
	return &os.LinkError{Op: op, Old: oldname, New: newname, Err: err}
}

// enter locks the disk for an operation; ErrCut for a dead process.
func (f *FS) enter() error {
	f.disk.mu.Lock()
	if f.dead {
		return ErrCut
	}
	return nil
}

func (f *FS) leave() { f.disk.mu.Unlock() }

// Open implements durable.FS.
func (f *FS) Open(name string, flag int, perm fs.FileMode) (durable.File, error) {
	file, err := f.openFile(name, flag, perm)
	if err != nil {
		return nil, pathError("open", name, err)
	}
	return file, nil
}

func (f *FS) openFile(name string, flag int, perm fs.FileMode) (*File, error) {
	defer f.leave()
	if err := f.enter(); err != nil {
		return nil, err
	}
	d := f.disk
	id, dir, base, err := d.find(name)
	writes := flag&(os.O_WRONLY|os.O_RDWR) != 0
	switch {
	case err == unix.ENOENT && base != "" && flag&os.O_CREATE != 0:
		if err := f.step("create %s %o", name, perm.Perm()); err != nil {
			return nil, err
		}
		id = d.nextID
		d.nextID++
		d.make(&change{kind: create, id: id, ino: d.takeInode(), uid: f.uid, mode: perm.Perm(), dir: dir, name: base})
		d.files[id] = &content{mtime: d.last, syncedAt: d.last}
	case err != nil:
		return nil, err
	case flag&(os.O_CREATE|os.O_EXCL) == os.O_CREATE|os.O_EXCL:
		return nil, unix.EEXIST
	case d.current.nodes[id].mode.IsDir() && (writes || flag&(os.O_CREATE|os.O_TRUNC) != 0):
		return nil, unix.EISDIR
	case flag&os.O_TRUNC != 0:
		if err := f.truncate(id, name); err != nil {
			return nil, err
		}
	}
	d.opens[id]++
	file := &File{fs: f, id: id, name: name, flag: flag}
	f.open[file] = true
	return file, nil
}

// truncate empties a file; a file that is empty already is left alone.
func (f *FS) truncate(id int, name string) error {
	c := f.disk.files[id]
	if len(c.data) == 0 {
		return nil
	}
	if err := f.step("truncate %s", name); err != nil {
		return err
	}
	ch := &change{kind: truncate, id: id}
	f.disk.make(ch)
	c.truncate(f.disk.last, ch)
	return nil
}

// Rename implements durable.FS.
func (f *FS) Rename(oldname, newname string) error {
	return linkError("rename", oldname, newname, f.rename(oldname, newname, false))
}

// RenameNew implements durable.FS.
func (f *FS) RenameNew(oldname, newname string) error {
	return linkError("rename", oldname, newname, f.rename(oldname, newname, true))
}

func (f *FS) rename(oldname, newname string, fresh bool) error {
	defer f.leave()
	if err := f.enter(); err != nil {
		return err
	}
	d := f.disk
	id, dir, base, err := d.find(oldname)
	if err != nil {
		return err
	}
	target, newDir, newBase, err := d.find(newname)
	switch {
	case err == unix.ENOENT && newBase != "":
		target = root
	case err != nil:
		return err
	case fresh:
		return unix.EEXIST // as the kernel does, whatever the file system knows
	case target == id:
		return nil // two names of one file: POSIX rename does nothing
	case d.current.nodes[target].mode.IsDir() && !d.current.nodes[id].mode.IsDir():
		return unix.EISDIR
	case d.current.nodes[id].mode.IsDir():
		return unix.ENOTDIR // onto a directory is not what anybody here needs
	}
	if fresh && d.onlyLinks {
		return fmt.Errorf("%w: %w", durable.ErrNoRenameNew, unix.EINVAL)
	}
	if err := f.step("rename %s %s", oldname, newname); err != nil {
		return err
	}
	d.make(&change{kind: rename, id: id, dir: dir, name: base, newDir: newDir, newName: newBase, replaced: target})
	d.unused(target)
	return nil
}

// Exchange implements durable.FS.
func (f *FS) Exchange(a, b string) error { return linkError("exchange", a, b, f.exchange(a, b)) }

func (f *FS) exchange(a, b string) error {
	defer f.leave()
	if err := f.enter(); err != nil {
		return err
	}
	d := f.disk
	id, dir, base, err := d.find(a)
	if err != nil {
		return err
	}
	other, otherDir, otherBase, err := d.find(b)
	switch {
	case err != nil:
		return err
	case d.current.nodes[id].mode.IsDir() || d.current.nodes[other].mode.IsDir():
		return unix.ENOTDIR // no caller exchanges directories
	case id == other:
		return nil
	}
	if d.onlyLinks {
		return fmt.Errorf("%w: %w", durable.ErrNoExchange, unix.EINVAL)
	}
	if err := f.step("exchange %s %s", a, b); err != nil {
		return err
	}
	d.make(&change{kind: rename, swaps: true, id: id, dir: dir, name: base, newDir: otherDir, newName: otherBase, replaced: other})
	return nil
}

// Link implements durable.FS.
func (f *FS) Link(oldname, newname string) error {
	return linkError("link", oldname, newname, f.link(oldname, newname))
}

func (f *FS) link(oldname, newname string) error {
	defer f.leave()
	if err := f.enter(); err != nil {
		return err
	}
	id, _, _, err := f.disk.find(oldname)
	if err != nil {
		return err
	}
	if f.disk.current.nodes[id].mode.IsDir() {
		return unix.EPERM
	}
	_, dir, base, err := f.disk.find(newname)
	if err == nil {
		return unix.EEXIST
	}
	if err != unix.ENOENT || base == "" {
		return err
	}
	if err := f.step("link %s %s", oldname, newname); err != nil {
		return err
	}
	f.disk.make(&change{kind: link, id: id, dir: dir, name: base})
	return nil
}

// Remove implements durable.FS.
func (f *FS) Remove(name string) error { return pathError("remove", name, f.remove(name)) }

func (f *FS) remove(name string) error {
	defer f.leave()
	if err := f.enter(); err != nil {
		return err
	}
	id, dir, base, err := f.disk.find(name)
	if err != nil {
		return err
	}
	if f.disk.current.nodes[id].mode.IsDir() {
		return unix.EISDIR
	}
	if err := f.step("remove %s", name); err != nil {
		return err
	}
	f.disk.make(&change{kind: unlink, id: id, dir: dir, name: base})
	f.disk.unused(id)
	return nil
}

// Mkdir implements durable.FS.
func (f *FS) Mkdir(name string, perm fs.FileMode) error {
	return pathError("mkdir", name, f.mkdir(name, perm))
}

func (f *FS) mkdir(name string, perm fs.FileMode) error {
	defer f.leave()
	if err := f.enter(); err != nil {
		return err
	}
	d := f.disk
	_, dir, base, err := d.find(name)
	if err == nil {
		return unix.EEXIST
	}
	if err != unix.ENOENT || base == "" {
		return err
	}
	mode := perm & (fs.ModePerm | fs.ModeSticky | fs.ModeSetgid)
	if err := f.step("mkdir %s %v", name, mode); err != nil {
		return err
	}
	id := d.nextID
	d.nextID++
	d.make(&change{kind: create, id: id, ino: d.takeInode(), uid: f.uid, mode: fs.ModeDir | mode, dir: dir, name: base})
	return nil
}

// Stat implements durable.FS.
func (f *FS) Stat(name string) (durable.Info, error) {
	defer f.leave()
	if err := f.enter(); err != nil {
		return durable.Info{}, pathError("stat", name, err)
	}
	id, _, _, err := f.disk.find(name)
	if err != nil {
		return durable.Info{}, pathError("stat", name, err)
	}
	return f.disk.info(id), nil
}

// ReadDir implements durable.FS.
func (f *FS) ReadDir(name string) ([]durable.Entry, error) {
	defer f.leave()
	if err := f.enter(); err != nil {
		return nil, pathError("readdir", name, err)
	}
	id, _, _, err := f.disk.find(name)
	if err == nil && !f.disk.current.nodes[id].mode.IsDir() {
		err = unix.ENOTDIR
	}
	if err != nil {
		return nil, pathError("readdir", name, err)
	}
	return f.disk.list(id), nil
}

// SyncDir implements durable.FS.
func (f *FS) SyncDir(name string) error { return pathError("fsync", name, f.syncDir(name)) }

func (f *FS) syncDir(name string) error {
	defer f.leave()
	if err := f.enter(); err != nil {
		return err
	}
	id, _, _, err := f.disk.find(name)
	if err != nil {
		return err
	}
	if !f.disk.current.nodes[id].mode.IsDir() {
		return unix.ENOTDIR
	}
	if err := f.step("syncdir %s", name); err != nil {
		return err
	}
	f.disk.cover(id)
	return nil
}
