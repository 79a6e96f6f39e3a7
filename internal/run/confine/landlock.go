package confine

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"github.com/landlock-lsm/go-landlock/landlock"
	ll "github.com/landlock-lsm/go-landlock/landlock/syscall"
	"golang.org/x/sys/unix"
)

// Rights below a directory.
const (
	readFile = ll.AccessFSReadFile | ll.AccessFSExecute
	readAll  = readFile | ll.AccessFSReadDir
	// put is what a file that is moved needs of the directory that it comes to.
	put = ll.AccessFSMakeReg | ll.AccessFSRefer
	// work is the same in all directories that are written to: the kernel refuses to move a
	// file where more could be done with it than before.
	work = ll.AccessFSReadFile | ll.AccessFSReadDir | ll.AccessFSWriteFile | ll.AccessFSTruncate | ll.AccessFSRemoveDir |
		ll.AccessFSRemoveFile | ll.AccessFSMakeDir | ll.AccessFSMakeSock | put
	// every right that is asked about, up to ABI 5.
	every = 1<<16 - 1
)

// restrict has the kernel hold the process to its profile, and returns how well it can.
func (p Plan) restrict() (string, error) {
	abi, err := ll.LandlockGetABIVersion()
	if err != nil || abi < 2 {
		// ABI 1 refuses every rename from one directory to another: no mail would move.
		return "not in this kernel", nil
	}
	rules, err := p.rules()
	if err != nil {
		return "", err
	}
	// No process of another profile is signalled; abstract sockets stay: systemd's.
	config := landlock.MustConfig(landlock.AccessFSSet(every), landlock.ScopedSet(ll.ScopeSignal))
	if err := config.BestEffort().Restrict(rules...); err != nil {
		return "", err
	}
	return "abi " + strconv.Itoa(abi), nil
}

// rules returns the profile: everything may be read but the postoffice, of which the
// profile's directories can be used.
func (p Plan) rules() ([]landlock.Rule, error) {
	office, err := filepath.EvalSymlinks(p.Office)
	if err != nil {
		return nil, err
	}
	dirs, files, err := around(office)
	if err != nil {
		return nil, err
	}
	// Names can be listed everywhere in the postoffice: it is opened by its path.
	top := landlock.AccessFSSet(ll.AccessFSReadDir)
	if p.Socket {
		// It is made under another name, renamed, and removed at the end; a right to the top
		// is one to all below.
		top |= ll.AccessFSMakeSock | ll.AccessFSRemoveFile
	}
	in := p
	in.Office = office
	rules := []landlock.Rule{
		landlock.PathAccess(readAll, dirs...).IgnoreIfMissing(),
		landlock.PathAccess(readFile, files...).IgnoreIfMissing(),
		// A program that this one starts lists the directories above the postoffice, too.
		landlock.PathAccess(landlock.AccessFSSet(ll.AccessFSReadDir), "/"),
		landlock.PathAccess(top, office),
		landlock.RWFiles("/dev/null", "/dev/zero", "/dev/full", "/dev/tty").WithIoctlDev().IgnoreIfMissing(),
		landlock.PathAccess(work, in.below(p.Profile.Write)...).IgnoreIfMissing(),
		landlock.PathAccess(readAll, in.below(p.Profile.Read)...).IgnoreIfMissing(),
		landlock.PathAccess(put, in.below(p.Profile.Add)...).IgnoreIfMissing(),
	}
	if p.Config != "" {
		rules = append(rules, landlock.PathAccess(readAll, p.Config).IgnoreIfMissing())
	}
	if len(p.Beside) > 0 {
		rules = append(rules, landlock.PathAccess(work|readAll, p.Beside...).IgnoreIfMissing())
	}
	return rules, nil
}

// around lists what there is beside a directory and beside each one above it: together
// all of the system but the directory. Symbolic links are left out, what they lead to is
// in the list. A name that is made later in one of the directories above is not.
func around(dir string) (dirs, files []string, err error) {
	for at := dir; at != "/"; at = filepath.Dir(at) {
		above := filepath.Dir(at)
		list, err := os.ReadDir(above)
		if errors.Is(err, fs.ErrPermission) {
			continue // we may not list it: what is beside is not ours to read
		}
		if err != nil {
			return nil, nil, fmt.Errorf("look around the postoffice: %w", err)
		}
		for _, e := range list {
			path := filepath.Join(above, e.Name())
			switch {
			case path == at || e.Type()&fs.ModeSymlink != 0 || !reachable(path):
			case e.IsDir():
				dirs = append(dirs, path)
			default:
				files = append(files, path)
			}
		}
	}
	return dirs, files, nil
}

// reachable reports whether a name can be put into a rule: another user's mount cannot.
func reachable(path string) bool {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	if err != nil {
		return false
	}
	_ = unix.Close(fd)
	return true
}
