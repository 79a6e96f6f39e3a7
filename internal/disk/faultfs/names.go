package faultfs

import (
	"io/fs"
	"os"
	"time"

	"zmailer/internal/disk/durable"
)

// Open implements durable.FS.
func (f *FS) Open(name string, flag int, perm fs.FileMode) (durable.File, error) {
	ops := []Op{Open}
	if flag&os.O_CREATE != 0 {
		ops = append(ops, Create)
	}
	if err := f.check(ops, name); err != nil {
		return nil, err
	}
	below, err := f.below.Open(name, flag, perm)
	if err != nil {
		return nil, err
	}
	return &file{fs: f, name: name, below: below}, nil
}

// Rename implements durable.FS.
func (f *FS) Rename(oldname, newname string) error {
	if err := f.check([]Op{Rename}, oldname, newname); err != nil {
		return err
	}
	return f.below.Rename(oldname, newname)
}

// RenameNew implements durable.FS.
func (f *FS) RenameNew(oldname, newname string) error {
	if err := f.check([]Op{Rename}, oldname, newname); err != nil {
		return err
	}
	return f.below.RenameNew(oldname, newname)
}

// Exchange implements durable.FS.
func (f *FS) Exchange(a, b string) error {
	if err := f.check([]Op{Rename}, a, b); err != nil {
		return err
	}
	return f.below.Exchange(a, b)
}

// Link implements durable.FS.
func (f *FS) Link(oldname, newname string) error {
	if err := f.check([]Op{Link}, oldname, newname); err != nil {
		return err
	}
	return f.below.Link(oldname, newname)
}

// Remove implements durable.FS.
func (f *FS) Remove(name string) error {
	if err := f.check([]Op{Remove}, name); err != nil {
		return err
	}
	return f.below.Remove(name)
}

// Mkdir implements durable.FS.
func (f *FS) Mkdir(name string, perm fs.FileMode) error {
	if err := f.check([]Op{Mkdir}, name); err != nil {
		return err
	}
	return f.below.Mkdir(name, perm)
}

// Stat implements durable.FS.
func (f *FS) Stat(name string) (durable.Info, error) {
	if err := f.check([]Op{Stat}, name); err != nil {
		return durable.Info{}, err
	}
	return f.below.Stat(name)
}

// ReadDir implements durable.FS.
func (f *FS) ReadDir(name string) ([]durable.Entry, error) {
	if err := f.check([]Op{ReadDir}, name); err != nil {
		return nil, err
	}
	return f.below.ReadDir(name)
}

// SyncDir implements durable.FS.
func (f *FS) SyncDir(name string) error {
	if err := f.check([]Op{SyncDir}, name); err != nil {
		return err
	}
	return f.below.SyncDir(name)
}

// SharesSync implements durable.Sharer.
func (f *FS) SharesSync() bool {
	s, ok := f.below.(durable.Sharer)
	return ok && s.SharesSync()
}

// SyncAll implements durable.Sharer. What stops the Sync of one file stops it.
func (f *FS) SyncAll(files []durable.File) error {
	below := make([]durable.File, 0, len(files))
	for _, one := range files {
		one := one.(*file)
		if err := one.check(Sync); err != nil {
			return err
		}
		below = append(below, one.below)
	}
	return f.below.(durable.Sharer).SyncAll(below)
}

// Unwritten is what durable.Unwritten calls.
func (f *FS) Unwritten(info durable.Info) bool { return durable.Unwritten(f.below, info) }

// Lock implements durable.FS.
func (f *FS) Lock(name string, content []byte) (durable.Lock, error) {
	if err := f.check([]Op{Lock}, name); err != nil {
		return nil, err
	}
	return f.below.Lock(name, content)
}

// file is an open file; its rules go by the name that it was opened with.
type file struct {
	fs    *FS
	name  string
	below durable.File
}

func (f *file) check(op Op) error { return f.fs.check([]Op{op}, f.name) }

func (f *file) Read(b []byte) (int, error) {
	if err := f.check(Read); err != nil {
		return 0, err
	}
	return f.below.Read(b)
}

func (f *file) ReadAt(b []byte, off int64) (int, error) {
	if err := f.check(Read); err != nil {
		return 0, err
	}
	return f.below.ReadAt(b, off)
}

func (f *file) Write(b []byte) (int, error) {
	if err := f.check(Write); err != nil {
		return 0, err
	}
	return f.below.Write(b)
}

func (f *file) Append(b []byte) (int, error) {
	if err := f.check(Write); err != nil {
		return 0, err
	}
	return f.below.Append(b)
}

func (f *file) WriteAt(b []byte, off int64) (int, error) {
	if err := f.check(WriteAt); err != nil {
		return 0, err
	}
	return f.below.WriteAt(b, off)
}

// WriteOut is what durable.WriteOut calls.
func (f *file) WriteOut(off, n int64) error {
	if err := f.check(WriteOut); err != nil {
		return err
	}
	return durable.WriteOut(f.below, off, n)
}

func (f *file) Sync() error {
	if err := f.check(Sync); err != nil {
		return err
	}
	return f.below.Sync()
}

func (f *file) Chmod(perm fs.FileMode) error {
	if err := f.check(Chmod); err != nil {
		return err
	}
	return f.below.Chmod(perm)
}

func (f *file) SetModTime(t time.Time) error {
	if err := f.check(Chmod); err != nil {
		return err
	}
	return f.below.SetModTime(t)
}

func (f *file) Stat() (durable.Info, error) {
	if err := f.check(Stat); err != nil {
		return durable.Info{}, err
	}
	return f.below.Stat()
}

func (f *file) TryLock() (bool, error) {
	if err := f.check(Flock); err != nil {
		return false, err
	}
	return f.below.TryLock()
}

func (f *file) TryShare() (bool, error) {
	if err := f.fs.check([]Op{Flock}, f.name); err != nil {
		return false, err
	}
	return f.below.TryShare()
}

func (f *file) WaitLock() error {
	if err := f.check(Flock); err != nil {
		return err
	}
	return f.below.WaitLock()
}

func (f *file) Unlock() error {
	if err := f.check(Flock); err != nil {
		return err
	}
	return f.below.Unlock()
}

// Close closes the file below even when it is to fail, as close(2) does.
func (f *file) Close() error {
	injected := f.check(Close)
	if err := f.below.Close(); err != nil {
		return err
	}
	return injected
}
