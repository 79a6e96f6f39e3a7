package cutfs

import (
	"errors"
	"io/fs"
	"os"

	"zmailer/internal/disk/durable"
)

// TryLock implements durable.File. As with flock(2), two open files of one process
// exclude each other too.
func (f *File) TryLock() (bool, error) {
	defer f.fs.leave()
	if err := f.enter(); err != nil {
		return false, pathError("flock", f.name, err)
	}
	return f.take(), nil
}

// TryShare implements durable.File.
func (f *File) TryShare() (bool, error) {
	defer f.fs.leave()
	if err := f.enter(); err != nil {
		return false, pathError("flock", f.name, err)
	}
	d := f.fs.disk
	if holder := d.flocks[f.id]; holder != nil && holder != f {
		return false, nil
	}
	f.release()
	if d.shares == nil {
		d.shares = map[int]map[*File]bool{}
	}
	if d.shares[f.id] == nil {
		d.shares[f.id] = map[*File]bool{}
	}
	d.shares[f.id][f] = true
	return true, nil
}

// WaitLock implements durable.File. It errs when its own process dies.
func (f *File) WaitLock() error {
	defer f.fs.leave()
	err := f.enter()
	for err == nil && !f.take() {
		f.fs.disk.unlock.Wait()
		switch {
		case f.fs.dead:
			err = ErrCut
		case f.closed:
			err = fs.ErrClosed
		}
	}
	return pathError("flock", f.name, err)
}

// Unlock implements durable.File.
func (f *File) Unlock() error {
	defer f.fs.leave()
	if err := f.enter(); err != nil {
		return pathError("flock", f.name, err)
	}
	f.release()
	return nil
}

// take takes the flock unless another open file has it. disk.mu is held.
func (f *File) take() bool {
	d := f.fs.disk
	if holder := d.flocks[f.id]; holder != nil && holder != f {
		return false
	}
	if n := len(d.shares[f.id]); n > 1 || n == 1 && !d.shares[f.id][f] {
		return false
	}
	f.release()
	d.flocks[f.id] = f
	return true
}

// release gives the flock back. disk.mu is held.
func (f *File) release() {
	d := f.fs.disk
	if d.flocks[f.id] == f {
		delete(d.flocks, f.id)
		d.unlock.Broadcast()
	}
	if d.shares[f.id][f] {
		delete(d.shares[f.id], f)
		d.unlock.Broadcast()
	}
}

// Lock implements durable.FS in the steps in which durable.OS does it; each step
// counts as an operation.
func (f *FS) Lock(name string, content []byte) (durable.Lock, error) {
	for {
		file, err := f.openFile(name, os.O_RDWR|os.O_CREATE, durable.LockMode)
		if err != nil {
			return nil, pathError("open", name, err)
		}
		ok, err := file.TryLock()
		if err == nil && !ok {
			err = pathError("lock", name, durable.ErrLocked)
		}
		if err != nil {
			return nil, errors.Join(err, file.Close())
		}
		mine, err := file.Stat()
		if err != nil {
			return nil, err
		}
		named, err := f.Stat(name)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		if err != nil || named.Ino != mine.Ino {
			if err := file.Close(); err != nil {
				return nil, err
			}
			continue
		}
		if err := f.fill(file, content); err != nil {
			return nil, errors.Join(err, file.Close())
		}
		return &lock{fs: f, name: name, file: file}, nil
	}
}

// fill gives a lock file its content.
func (f *FS) fill(file *File, content []byte) error {
	f.disk.mu.Lock()
	err := f.truncate(file.id, file.name)
	f.disk.mu.Unlock()
	if err != nil {
		return pathError("write", file.name, err)
	}
	if _, err := file.WriteAt(content, 0); err != nil {
		return err
	}
	return file.Sync()
}

type lock struct {
	fs   *FS
	name string
	file *File
}

// Release implements durable.Lock.
func (l *lock) Release() error {
	err := l.fs.Remove(l.name)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return errors.Join(err, l.file.Close())
}

// Abandon implements durable.Lock.
func (l *lock) Abandon() error { return l.file.Close() }
