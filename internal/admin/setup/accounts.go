package setup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"zmailer/internal/disk/durable"
	"zmailer/internal/lookup/passwd"
)

// accountsMode is that of a new file: the group of smtpserver may read it.
const accountsMode = 0o640

// ChangeAccounts changes one user in a file of accounts and reports whether the user was in
// it. The file keeps its owner and mode. Concurrent calls wait for each other.
func ChangeAccounts(path string, change passwd.Change) (known bool, err error) {
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real
	}
	if known, err = changeAccounts(path, change); err != nil {
		err = fmt.Errorf("write %s: %w", path, err)
	}
	return known, err
}

func changeAccounts(path string, change passwd.Change) (known bool, err error) {
	disk, err := durable.NewOS(filepath.Dir(path))
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, disk.Close()) }()
	// A lock file, not the directory: any user may open that, and keep a lock on it.
	lock, err := disk.WaitLock("."+filepath.Base(path)+".lock", nil)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, lock.Release()) }()
	var mode fs.FileMode = accountsMode
	uid, gid := -1, -1 // leave them alone
	text, err := os.ReadFile(path)
	switch {
	case err == nil:
		info, err := os.Stat(path)
		if err != nil {
			return false, err
		}
		owner := info.Sys().(*syscall.Stat_t)
		mode, uid, gid = info.Mode().Perm(), int(owner.Uid), int(owner.Gid)
	case !errors.Is(err, fs.ErrNotExist):
		return false, err
	}
	changed, known, err := change.Apply(text)
	if err != nil || change.Password == "" && !known {
		return known, err
	}
	tmp, err := os.CreateTemp(disk.Dir(), ".passwd-*")
	if err != nil {
		return known, err
	}
	defer os.Remove(tmp.Name()) // it has another name if all went well
	defer tmp.Close()
	_, err = tmp.Write(changed)
	for _, step := range []func() error{
		func() error { return tmp.Chmod(mode) },
		func() error { return tmp.Chown(uid, gid) },
		tmp.Sync,
		// Crash: the file is the old one or the new one, whole; a .passwd- file may be left.
		func() error { return os.Rename(tmp.Name(), path) },
		func() error { return disk.SyncDir(".") },
	} {
		if err == nil {
			err = step()
		}
	}
	return known, err
}
