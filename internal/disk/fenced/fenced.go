// Package fenced is a durable.FS whose names change only while this machine holds its lease in a
// cluster (docs/cluster.md, "What a stale node may still write"): when the lease has ended, another
// machine may be working in the postoffice, and a rename or removal here would change a file of its
// own. Nothing is checked where there is no cluster: New then returns the FS below.
//
// It owns nothing. What survives a crash is what the FS below has.
//
// Diagnostics: an operation that was not done returns the error of the FS's kind, with operation and
// path, that wraps lease.ErrNoLease. A lock file stays when the lock is released without a lease,
// as after the death of its holder.
package fenced

import (
	"io/fs"
	"os"

	"zmailer/internal/disk/durable"
	"zmailer/internal/run/lease"
)

// Guards say what is done under a lease alone.
type Guards uint8

const (
	// Names are renames, links, removals and lock files. A new directory changes no file of others.
	Names Guards = 1 << iota
	// Content is what is written to files, too: for the program that records results in the work
	// specifications, of which a late one would hide a delivery in doubt.
	Content
)

// FS is a fenced file system.
type FS struct {
	*durable.OS
	page   *lease.Page
	guards Guards
}

// New returns a file system that asks a page. Without a page it is the one below.
func New(below *durable.OS, page *lease.Page, guards Guards) durable.FS {
	if page == nil {
		return below
	}
	return &FS{below, page, guards}
}

// check reports why a change of a name is not made.
func (f *FS) check(op, name string) error {
	if err := f.page.Check(lease.Step); err != nil {
		return &fs.PathError{Op: op, Path: name, Err: err}
	}
	return nil
}

func (f *FS) checkTwo(op, oldname, newname string) error {
	if err := f.page.Check(lease.Step); err != nil {
		return &os.LinkError{Op: op, Old: oldname, New: newname, Err: err}
	}
	return nil
}

// Rename implements durable.FS.
func (f *FS) Rename(oldname, newname string) error {
	if err := f.checkTwo("rename", oldname, newname); err != nil {
		return err
	}
	// Crash: as durable.OS.Rename.
	return f.OS.Rename(oldname, newname)
}

// RenameNew implements durable.FS.
func (f *FS) RenameNew(oldname, newname string) error {
	if err := f.checkTwo("rename", oldname, newname); err != nil {
		return err
	}
	// Crash: as durable.OS.RenameNew.
	return f.OS.RenameNew(oldname, newname)
}

// Exchange implements durable.FS.
func (f *FS) Exchange(a, b string) error {
	if err := f.checkTwo("exchange", a, b); err != nil {
		return err
	}
	// Crash: as durable.OS.Exchange.
	return f.OS.Exchange(a, b)
}

// Link implements durable.FS.
func (f *FS) Link(oldname, newname string) error {
	if err := f.checkTwo("link", oldname, newname); err != nil {
		return err
	}
	// Crash: as durable.OS.Link.
	return f.OS.Link(oldname, newname)
}

// Remove implements durable.FS.
func (f *FS) Remove(name string) error {
	if err := f.check("remove", name); err != nil {
		return err
	}
	// Crash: as durable.OS.Remove.
	return f.OS.Remove(name)
}

// RemoveDir removes an empty directory.
func (f *FS) RemoveDir(name string) error {
	if err := f.check("remove", name); err != nil {
		return err
	}
	// Crash: as durable.OS.RemoveDir.
	return f.OS.RemoveDir(name)
}

// Lock implements durable.FS.
func (f *FS) Lock(name string, content []byte) (durable.Lock, error) {
	return f.lock(name, content, f.OS.Lock)
}

// WaitLock is Lock, but waits for the holder.
func (f *FS) WaitLock(name string, content []byte) (durable.Lock, error) {
	return f.lock(name, content, f.OS.WaitLock)
}

func (f *FS) lock(name string, content []byte, take func(string, []byte) (durable.Lock, error)) (durable.Lock, error) {
	if err := f.check("lock", name); err != nil {
		return nil, err
	}
	l, err := take(name, content)
	if err != nil {
		return nil, err
	}
	return &lock{l, f.page}, nil
}

// lock is a held lock file.
type lock struct {
	durable.Lock
	page *lease.Page
}

// Release implements durable.Lock.
func (l *lock) Release() error {
	if l.page.Check(lease.Step) != nil {
		// Crash: a lock file that no process holds, here and on the machine that serves the
		// postoffice now.
		return l.Abandon()
	}
	return l.Lock.Release()
}

// Open implements durable.FS.
func (f *FS) Open(name string, flag int, perm fs.FileMode) (durable.File, error) {
	writes := flag&(os.O_WRONLY|os.O_RDWR) != 0
	if writes && flag&(os.O_CREATE|os.O_TRUNC) != 0 && f.guards&Content != 0 {
		if err := f.check("open", name); err != nil {
			return nil, err
		}
	}
	below, err := f.OS.Open(name, flag, perm)
	if err != nil || !writes || f.guards&Content == 0 {
		return below, err
	}
	return &file{below, f, name}, nil
}

// SyncAll implements durable.Sharer.
func (f *FS) SyncAll(files []durable.File) error {
	inner := make([]durable.File, len(files))
	for i, one := range files {
		if guarded, ok := one.(*file); ok {
			one = guarded.File
		}
		inner[i] = one
	}
	// Crash: as durable.OS.SyncAll.
	return f.OS.SyncAll(inner)
}

// file is an open file whose content is guarded.
type file struct {
	durable.File
	fs   *FS
	name string
}

// Write implements durable.File.
func (f *file) Write(b []byte) (int, error) {
	if err := f.fs.check("write", f.name); err != nil {
		return 0, err
	}
	return f.File.Write(b)
}

// WriteAt implements durable.File.
func (f *file) WriteAt(b []byte, off int64) (int, error) {
	if err := f.fs.check("write", f.name); err != nil {
		return 0, err
	}
	return f.File.WriteAt(b, off)
}

// Append implements durable.File.
func (f *file) Append(b []byte) (int, error) {
	if err := f.fs.check("append", f.name); err != nil {
		return 0, err
	}
	return f.File.Append(b)
}

// Chmod implements durable.File.
func (f *file) Chmod(perm fs.FileMode) error {
	if err := f.fs.check("chmod", f.name); err != nil {
		return err
	}
	return f.File.Chmod(perm)
}
