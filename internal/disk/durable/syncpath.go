package durable

import (
	"errors"
	"io/fs"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// SyncPath makes the name of a directory durable, and the names of the directories above
// it up to the mount point, for a program that may have made some of them. A directory that
// this process may not read was not made by it and is passed over.
func SyncPath(dir string) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	for above := filepath.Dir(dir); ; dir, above = above, filepath.Dir(above) {
		var own, upper unix.Stat_t
		err := retry(func() error { return unix.Stat(dir, &own) })
		if err == nil {
			err = retry(func() error { return unix.Stat(above, &upper) })
		}
		if err != nil {
			return &fs.PathError{Op: "stat", Path: dir, Err: err}
		}
		if dir == above || own.Dev != upper.Dev {
			return nil
		}
		o, err := NewOS(above)
		if errors.Is(err, fs.ErrPermission) {
			return nil
		}
		if err != nil {
			return err
		}
		// Crash: before this the directory may be gone with all that is in it.
		if err := errors.Join(o.SyncDir("."), o.Close()); err != nil {
			return err
		}
	}
}
