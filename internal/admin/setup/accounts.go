package setup

import (
	"errors"
	"fmt"
	"io"
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
//
// Who can write to the directory has root change no file but their own, see followOwn and readOwn.
func ChangeAccounts(path string, change passwd.Change, readers int) (known bool, err error) {
	if path, err = followOwn(path); err != nil {
		return false, err
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
	text, info, err := readOwn(path)
	switch {
	case err == nil:
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

// followOwn returns the path behind the symbolic links of a name, all of which must be root's or
// this user's: another user's leads to a file that he may not change.
func followOwn(path string) (string, error) {
	for range 40 { // as many as the kernel follows
		info, err := os.Lstat(path)
		if err != nil || info.Mode()&fs.ModeSymlink == 0 {
			return path, nil // what is wrong is found when it is read
		}
		if uid := int(info.Sys().(*syscall.Stat_t).Uid); uid != 0 && uid != os.Geteuid() {
			return "", fmt.Errorf("write %s: it is a symbolic link of the user %d; name the file that it leads to, or remove it", path, uid)
		}
		to, err := os.Readlink(path)
		if err != nil {
			return "", err
		}
		if !filepath.IsAbs(to) {
			to = filepath.Join(filepath.Dir(path), to)
		}
		path = to
	}
	return "", fmt.Errorf("write %s: %w", path, syscall.ELOOP)
}

// readOwn reads a file, and what it is. Where others can make names it must have one name: another
// may be that of a file of root's, which its maker cannot read.
func readOwn(path string) (text []byte, info fs.FileInfo, err error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	if info, err = f.Stat(); err != nil {
		return nil, nil, err
	}
	dir, err := os.Stat(filepath.Dir(path))
	if err != nil {
		return nil, nil, err
	}
	owner := int(dir.Sys().(*syscall.Stat_t).Uid)
	others := owner != 0 && owner != os.Geteuid() || dir.Mode().Perm()&0o022 != 0
	switch {
	case !info.Mode().IsRegular():
		return nil, nil, errors.New("it is not a regular file")
	case others && info.Sys().(*syscall.Stat_t).Nlink > 1:
		return nil, nil, errors.New("it has another name (a hard link), and others can write to its directory; remove that name")
	}
	text, err = io.ReadAll(f)
	return text, info, err
}
