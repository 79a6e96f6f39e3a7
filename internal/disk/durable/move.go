package durable

import (
	"errors"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// MoveNew is RenameNew also where the file system has none: there it links the file to the
// new name and removes the old one, so that a reader may find both for a moment, and after a
// crash for good. It is for names of which that does no harm. A directory, which cannot be
// linked, is renamed if no name is there: another process must not make one at that moment.
func MoveNew(f FS, oldname, newname string) error {
	err := f.RenameNew(oldname, newname)
	if !errors.Is(err, ErrNoRenameNew) {
		return err
	}
	// Crash: both names.
	err = f.Link(oldname, newname)
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EISDIR) {
		return MoveFree(f, oldname, newname)
	}
	if err != nil {
		return err
	}
	// Crash: the new name alone.
	if err = f.Remove(oldname); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// MoveFree is RenameNew to a name that no other process can be about to make. Where the file
// system has no RenameNew it looks whether the name is free, and renames.
func MoveFree(f FS, oldname, newname string) error {
	err := f.RenameNew(oldname, newname)
	if !errors.Is(err, ErrNoRenameNew) {
		return err
	}
	_, err = f.Stat(newname)
	switch {
	case err == nil:
		if _, err := f.Stat(oldname); err != nil {
			return err
		}
		return &os.LinkError{Op: "rename", Old: oldname, New: newname, Err: unix.EEXIST}
	case errors.Is(err, fs.ErrNotExist):
		// Crash: the old name or the new one.
		return f.Rename(oldname, newname)
	}
	return err
}
