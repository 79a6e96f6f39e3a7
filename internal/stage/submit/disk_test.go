package submit

import (
	"errors"
	"io/fs"
	"sync"

	"zmailer/internal/disk/durable"
)

// errKilled is what a process sees that is no more.
var errKilled = errors.New("killed")

// troubled is a real file system of which single operations fail. before is asked
// ahead of each; an error from it is the operation's, and nothing is done.
type troubled struct {
	durable.FS
	before func(op, name string) error
}

func (f *troubled) Open(name string, flag int, perm fs.FileMode) (durable.File, error) {
	if err := f.before("open", name); err != nil {
		return nil, err
	}
	file, err := f.FS.Open(name, flag, perm)
	if err != nil {
		return nil, err
	}
	return &troubledFile{File: file, fs: f, name: name}, nil
}

func (f *troubled) RenameNew(from, to string) error {
	if err := f.before("rename", from); err != nil {
		return err
	}
	return f.FS.RenameNew(from, to)
}

func (f *troubled) Remove(name string) error {
	if err := f.before("remove", name); err != nil {
		return err
	}
	return f.FS.Remove(name)
}

func (f *troubled) SyncDir(name string) error {
	if err := f.before("syncdir", name); err != nil {
		return err
	}
	return f.FS.SyncDir(name)
}

type troubledFile struct {
	durable.File
	fs   *troubled
	name string
}

func (f *troubledFile) Write(b []byte) (int, error) {
	if err := f.fs.before("write", f.name); err != nil {
		return 0, err
	}
	return f.File.Write(b)
}

func (f *troubledFile) WriteAt(b []byte, off int64) (int, error) {
	if err := f.fs.before("writeat", f.name); err != nil {
		return 0, err
	}
	return f.File.WriteAt(b, off)
}

func (f *troubledFile) Sync() error {
	if err := f.fs.before("fsync", f.name); err != nil {
		return err
	}
	return f.File.Sync()
}

func (f *troubledFile) Chmod(perm fs.FileMode) error {
	if err := f.fs.before("chmod", f.name); err != nil {
		return err
	}
	return f.File.Chmod(perm)
}

// killAfter lets n operations happen and none after them.
func killAfter(n int) func(string, string) error {
	var mu sync.Mutex
	return func(string, string) error {
		mu.Lock()
		defer mu.Unlock()
		if n--; n < 0 {
			return errKilled
		}
		return nil
	}
}

// failOn fails one kind of operation.
func failOn(op string, with error) func(string, string) error {
	return func(o, name string) error {
		if o == op {
			return &fs.PathError{Op: op, Path: name, Err: with}
		}
		return nil
	}
}
