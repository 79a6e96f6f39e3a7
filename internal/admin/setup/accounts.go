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
	"zmailer/internal/run/config"
	"zmailer/internal/run/confine"
)

// accountsMode is that of a new file: the group of smtpserver may read it.
const accountsMode = 0o640

// ReadersGroup returns the group of the user that the daemons run as: DAEMONUSER's, or that of
// the postoffice's owner; -1: the daemons are root, or this process is not, and a file that it
// writes is theirs.
func ReadersGroup(settings *config.Config) int {
	if os.Geteuid() != 0 {
		return -1
	}
	if a, err := confine.PlanFor("smtpserver", settings).Account(); err == nil && a != nil {
		return a.GID
	}
	info, err := os.Stat(settings.PostOffice())
	if err != nil {
		return -1
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok && st.Uid != 0 {
		return int(st.Gid)
	}
	return -1
}

// ChangeAccounts changes one user in a file of accounts and reports whether the user was in
// it. The file keeps its owner and mode, unless readers, the group of the daemons, could not
// read it then; -1: no group needs to. Concurrent calls wait for each other.
func ChangeAccounts(path string, change passwd.Change, readers int) (known bool, err error) {
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real
	}
	if known, err = changeAccounts(path, change, readers); err != nil {
		err = fmt.Errorf("write %s: %w", path, err)
	}
	return known, err
}

func changeAccounts(path string, change passwd.Change, readers int) (known bool, err error) {
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
	uid, gid := -1, readers // -1 leaves them alone
	text, err := os.ReadFile(path)
	switch {
	case err == nil:
		info, err := os.Stat(path)
		if err != nil {
			return false, err
		}
		owner := info.Sys().(*syscall.Stat_t)
		mode, uid, gid = info.Mode().Perm(), int(owner.Uid), int(owner.Gid)
		if readers >= 0 && uid == 0 && (gid == 0 || gid == readers && mode&0o040 == 0) {
			// Root's alone, which the daemons cannot read.
			mode, gid = mode|0o040, readers
		}
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
		func() error { return tmp.Chown(uid, gid) },
		func() error { return tmp.Chmod(mode) },
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
